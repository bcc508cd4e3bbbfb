package export

import (
	"bufio"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"
)

// Bounds of a row group, which is held in memory while it grows.
const (
	groupRows  = 64 << 10
	groupBytes = 32 << 20 // of leaves
)

// parquetFile writes a row a leaf. The footer comes last: a file that was cut off
// has none, and no reader opens it.
type parquetFile struct {
	w     *parquet.GenericWriter[row]
	batch []row
	rows  int
	bytes int
}

// batchRows are handed to the writer at once: its column writers cost more by the
// call than by the row.
const batchRows = 256

func newParquet(w *bufio.Writer) *parquetFile {
	return &parquetFile{
		w: parquet.NewGenericWriter[row](w, parquet.Compression(&zstd.Codec{Level: zstd.SpeedFastest}),
			parquet.CreatedBy("pdgate", "1", ""), parquet.KeyValueMetadata("pdgate.order", "log")),
		batch: make([]row, 0, batchRows),
	}
}

func (p *parquetFile) add(e *entry) error {
	p.batch = append(p.batch, flatten(e))
	p.rows++
	p.bytes += len(e.Raw)
	full := p.rows >= groupRows || p.bytes >= groupBytes
	if len(p.batch) < batchRows && !full {
		return nil
	}
	if err := p.write(); err != nil || !full {
		return err
	}
	p.rows, p.bytes = 0, 0
	return p.w.Flush()
}

func (p *parquetFile) write() error {
	_, err := p.w.Write(p.batch)
	clear(p.batch)
	p.batch = p.batch[:0]
	return err
}

func (p *parquetFile) close() error {
	if err := p.write(); err != nil {
		return err
	}
	return p.w.Close()
}

func (p *parquetFile) abort() {}
