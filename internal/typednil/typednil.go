// Package typednil finds nil pointers in interfaces, the usual result of an ignored error.
package typednil

import "reflect"

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
