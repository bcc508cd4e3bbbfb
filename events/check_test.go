package events

import "testing"

func TestAddress(t *testing.T) {
	for s, want := range map[string]bool{
		"tcp://10.0.0.5:7070": true, "tcp://[::1]:7070": true, "tcp://host:0": false, "tcp://host": false,
		"tcp://a b:1": false, "tcp://u@h:1": false, "tcp://::1:7070": false, "http://h:1": false,
		"unix:///run/p1.sock": true, "unix:///data of mine/run/p1.sock": true,
		"unix://run/p1.sock": false, "unix:///a\nb": false, "unix:///": false, "": false,
	} {
		if got := isAddress(s); got != want {
			t.Errorf("%q: %v", s, got)
		}
	}
}
