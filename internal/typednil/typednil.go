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

// Name names a nil value for errors, with its type if it has one.
func Name(v any) string {
	if v == nil {
		return "nil"
	}
	return fmt.Sprintf("nil %T", v)
}
