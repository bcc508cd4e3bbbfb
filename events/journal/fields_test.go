package journal

import (
	"reflect"

	"github.com/nats-io/nats.go/jetstream"
)

func fields(v any) (names []string) {
	t := reflect.TypeOf(v)
	for i := range t.NumField() {
		names = append(names, t.Field(i).Name)
	}
	return names
}

// changedFields names the fields in which a and b differ.
func changedFields(a, b *jetstream.StreamConfig) (names []string) {
	x, y := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	for i := range x.NumField() {
		if !reflect.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface()) {
			names = append(names, x.Type().Field(i).Name)
		}
	}
	return names
}
