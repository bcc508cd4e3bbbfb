// Package traffic reads published traces of real LLM traffic: when requests
// arrived and how long they were. The texts are not in them.
//
// Two formats are known:
//
//   - Mooncake (github.com/kvcache-ai/Mooncake, FAST25 traces, Apache-2.0): JSON
//     lines with timestamp in milliseconds, input_length and output_length in
//     tokens, and hash_ids, one for each 512-token block of the prompt; equal ids
//     are equal prefixes.
//   - Azure (github.com/Azure/AzurePublicDataset, LLM inference 2023, CC-BY 4.0):
//     CSV with TIMESTAMP, ContextTokens, GeneratedTokens.
package traffic

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"
)

// BlockTokens is the length of one Mooncake prompt block.
const BlockTokens = 512

// maxTokens bounds what a line may claim; no published model reads more.
const maxTokens = 1 << 30

// Arrival is one request of a trace.
type Arrival struct {
	Line         int           // in the file, from 1
	At           time.Duration // since the first request
	PromptTokens int
	OutputTokens int
	Blocks       []int64 // Mooncake: ids of the prompt's blocks; nil otherwise
}

// Read reads a trace in either format, told by its first byte. It streams, and
// ends with the first error, which names the line.
func Read(r io.Reader) iter.Seq2[Arrival, error] {
	return func(yield func(Arrival, error) bool) {
		b := bufio.NewReaderSize(r, 64<<10)
		first, err := b.Peek(1)
		switch {
		case errors.Is(err, io.EOF):
			yield(Arrival{}, errors.New("trace is empty"))
		case err != nil:
			yield(Arrival{}, fmt.Errorf("read trace: %w", err))
		case first[0] == '{':
			mooncake(b, yield)
		default:
			azure(b, yield)
		}
	}
}

func mooncake(r *bufio.Reader, yield func(Arrival, error) bool) {
	var start int64
	s := bufio.NewScanner(r)
	s.Buffer(nil, 16<<20)
	for line := 1; s.Scan(); line++ {
		if len(bytes.TrimSpace(s.Bytes())) == 0 {
			continue
		}
		var m struct {
			Timestamp *int64  `json:"timestamp"`
			Input     *int    `json:"input_length"`
			Output    *int    `json:"output_length"`
			Blocks    []int64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(s.Bytes(), &m); err != nil {
			yield(Arrival{}, fmt.Errorf("trace line %d: %w", line, plain(err)))
			return
		}
		switch {
		case m.Timestamp == nil:
			yield(Arrival{}, missing(line, "timestamp"))
			return
		case m.Input == nil:
			yield(Arrival{}, missing(line, "input_length"))
			return
		case m.Output == nil:
			yield(Arrival{}, missing(line, "output_length"))
			return
		}
		if line == 1 {
			start = *m.Timestamp
		}
		a := Arrival{line, time.Duration(*m.Timestamp-start) * time.Millisecond, *m.Input, *m.Output, m.Blocks}
		if err := a.check(); err != nil {
			yield(Arrival{}, err)
			return
		}
		if !yield(a, nil) {
			return
		}
	}
	if err := s.Err(); err != nil {
		yield(Arrival{}, fmt.Errorf("read trace: %w", err))
	}
}

// plain says what is wrong with a line in the trace's terms.
func plain(err error) error {
	if t := (*json.UnmarshalTypeError)(nil); errors.As(err, &t) && t.Field != "" {
		return fmt.Errorf("%s is a %s, want a whole number", t.Field, t.Value)
	}
	return err
}

func missing(line int, field string) error {
	return fmt.Errorf("trace line %d: %s is missing", line, field)
}

const azureTime = "2006-01-02 15:04:05.9999999"

var (
	azureHeader = []string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"}
	azureWant   = []string{"a time such as 2023-11-16 18:17:03.9799600", "a whole number", "a whole number"}
)

func azure(r *bufio.Reader, yield func(Arrival, error) bool) {
	c := csv.NewReader(r)
	c.FieldsPerRecord = 3
	c.ReuseRecord = true
	var start time.Time
	for line := 1; ; line++ {
		f, err := c.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		if line == 1 {
			if err != nil || !slices.Equal(f, azureHeader) {
				yield(Arrival{}, fmt.Errorf("trace line 1: want JSON lines (Mooncake) or the header %s (Azure)", strings.Join(azureHeader, ",")))
				return
			}
			continue
		}
		if err != nil {
			yield(Arrival{}, fmt.Errorf("trace: %w", err))
			return
		}
		t, err1 := time.Parse(azureTime, f[0])
		in, err2 := strconv.Atoi(f[1])
		out, err3 := strconv.Atoi(f[2])
		for i, err := range []error{err1, err2, err3} {
			if err != nil {
				yield(Arrival{}, fmt.Errorf("trace line %d: %s %.40q, want %s", line, azureHeader[i], f[i], azureWant[i]))
				return
			}
		}
		if line == 2 {
			start = t
		}
		a := Arrival{Line: line, At: t.Sub(start), PromptTokens: in, OutputTokens: out}
		if err := a.check(); err != nil {
			yield(Arrival{}, err)
			return
		}
		if !yield(a, nil) {
			return
		}
	}
}

func (a *Arrival) check() error {
	switch {
	case a.PromptTokens < 1 || a.PromptTokens > maxTokens:
		return fmt.Errorf("trace line %d: prompt of %d tokens", a.Line, a.PromptTokens)
	case a.OutputTokens < 0 || a.OutputTokens > maxTokens:
		return fmt.Errorf("trace line %d: output of %d tokens", a.Line, a.OutputTokens)
	case a.At < 0:
		return fmt.Errorf("trace line %d: earlier than the first line", a.Line)
	}
	return nil
}
