package kvpool

import "testing"

// What is measured is right, whatever it takes: on the interpreter the times mean
// nothing.
func TestMeasure(t *testing.T) {
	drv, err := OpenDriver("interpreter")
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{4096, 48 << 10} {
		all, err := Measure(drv, size, 4*int64(size), 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			if len(m.Took) != 1 || m.Rate() <= 0 || m.Bytes < 4*int64(size) {
				t.Errorf("%+v", m)
			}
		}
		if len(all) != 8 {
			t.Errorf("%d operations", len(all))
		}
	}
	for _, c := range [][3]int{{4096, 100, 1}, {100, 1000, 1}, {4096, 4096, 0}} {
		if _, err := Measure(drv, c[0], int64(c[1]), c[2]); err == nil {
			t.Errorf("%v is measured", c)
		}
	}
	if err := drv.Close(); err != nil {
		t.Error(err)
	}
}
