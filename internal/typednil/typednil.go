// Package typednil finds nil pointers in interfaces, the usual result of an ignored error.
package typednil

import (
	"fmt"
	"reflect"
)

// Is reports whether v is nil, or an interface that holds a nil pointer, map or func.
func Is(v any) bool {
	if v == nil {
		return true
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Func:
		return r.IsNil()
	}
	return false
}

// Within returns the typed nils among v and, if v is a slice, its elements. A nil without a type is none.
func Within(v any) (nils []any) {
	switch r := reflect.ValueOf(v); {
	case v == nil:
	case r.Kind() == reflect.Slice:
		for i := range r.Len() {
			nils = append(nils, Within(r.Index(i).Interface())...)
		}
	case Is(v):
		nils = []any{v}
	}
	return nils
}

// Name names a nil value for errors, with its type if it has one.
func Name(v any) string {
	if v == nil {
		return "nil"
	}
	return fmt.Sprintf("nil %T", v)
}
