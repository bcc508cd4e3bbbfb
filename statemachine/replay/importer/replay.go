package importer

import (
	"errors"
	"fmt"
	"io"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine/replay"
)

// Source is a file of our own events, as they are. Other files have none.
func (f *File) Source() (replay.Source, replay.Properties, error) {
	switch f.Input.Format {
	case replay.FormatTrace:
		src, err := replay.NewTrace(f.r)
		if err != nil {
			return nil, replay.Properties{}, err
		}
		return src, replay.Properties{Partitions: src.Partitions, Anchored: true, Sum: src.Sum}, nil
	case replay.FormatEvents:
		return replay.NewLines(f.r), replay.Properties{Unlinked: true, Unplaced: true}, nil
	case replay.FormatOTLP, replay.FormatTempo, replay.FormatJaeger, replay.FormatPerfetto:
		s, problems, err := f.spans()
		if err == nil && len(s.own) == 0 {
			err = fmt.Errorf("%w: no span carries an event of ours", replay.ErrUnreadable)
		}
		if err != nil {
			return nil, replay.Properties{}, err
		}
		return &troubled{newOwnSource(s.own), problems}, replay.Properties{Unlinked: true}, nil
	}
	return nil, replay.Properties{}, fmt.Errorf("%w: %s holds no events of ours", replay.ErrUnreadable, f.Input.Format)
}

// Add replays a file of our own events. A file of spans is read whole first; what
// it tells of engines' legs goes to the joiner, which is replayed by [Joiner.Add]
// after all files.
func (f *File) Add(r *replay.Replay, j *Joiner) error {
	switch f.Input.Format {
	case replay.FormatTrace, replay.FormatEvents:
		src, p, err := f.Source()
		if err != nil {
			return err
		}
		return r.Add(f.Input, src, p)
	case replay.FormatOTLP, replay.FormatTempo, replay.FormatJaeger, replay.FormatPerfetto:
		return f.addSpans(r, j)
	case replay.FormatBundle:
		return errors.New("a bundle is opened as a file, not as a stream")
	}
	l := &engineLog{r: replay.NewLineReader(f.r, maxLogLine), in: f.Input, year: j.Year}
	j.files = append(j.files, &file{f.Input, l.next})
	r.Include(f.Input)
	return nil
}

// spans reads a file of spans whole.
func (f *File) spans() (*spanFile, []*replay.Malformed, error) {
	s := &spanFile{in: f.Input, r: replay.NewLineReader(f.r, maxDocument), legs: map[string]*record{}}
	var problems []*replay.Malformed
	for {
		_, err := s.next()
		var m *replay.Malformed
		switch {
		case errors.As(err, &m):
			problems = append(problems, m)
		case errors.Is(err, io.EOF):
			return s, problems, nil
		case err != nil:
			return nil, nil, err
		}
	}
}

func (f *File) addSpans(r *replay.Replay, j *Joiner) error {
	s, problems, err := f.spans()
	if err != nil {
		return err
	}
	if len(s.own) > 0 {
		return r.Add(f.Input, &troubled{newOwnSource(s.own), problems}, replay.Properties{Unlinked: true})
	}
	legs := s.legsInOrder()
	if len(legs) == 0 && s.spans > 0 {
		problems = append(problems, &replay.Malformed{Want: "spans with " + AttrEvent + ", rid or gen_ai.request.id: none of them tells of a request", Cut: true})
	}
	r.Include(f.Input)
	j.files = append(j.files, &file{f.Input, func() ([]*record, error) {
		if len(problems) > 0 {
			m := problems[0]
			problems = problems[1:]
			return nil, m
		}
		all := legs
		legs = nil
		return all, io.EOF
	}})
	return nil
}

// troubled tells of what could not be read before the events.
type troubled struct {
	*ownSource
	problems []*replay.Malformed
}

func (t *troubled) Next() (env *events.Envelope, err error) {
	if len(t.problems) > 0 {
		m := t.problems[0]
		t.problems = t.problems[1:]
		return nil, m
	}
	return t.ownSource.Next()
}

// Add replays what the joiner was given.
func (j *Joiner) Add(r *replay.Replay) error {
	if len(j.files) == 0 {
		return nil
	}
	return r.Add(j.files[0].in, j, j.Properties())
}
