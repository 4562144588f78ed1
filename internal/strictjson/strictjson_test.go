package strictjson_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"github.com/sluice-go/sluice/internal/strictjson"
)

func TestObject(t *testing.T) {
	t.Parallel()
	data := []byte(" {\"a\": [1, {}],\n\"A\":2, \"a\" : null} ")
	got, err := strictjson.Object(data)
	want := []strictjson.Member{
		{Name: "a", Value: json.RawMessage("[1, {}]"), At: 7},
		{Name: "A", Value: json.RawMessage("2"), At: 20},
		{Name: "a", Value: json.RawMessage("null"), At: 29, Repeated: true},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if line := strictjson.Line(data, got[1].At); line != 2 {
		t.Errorf("line %d, want 2", line)
	}
}

func TestObjectRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "{", `{"a": 1,}`, "{} {}", `{"a" 1}`} {
		var syntax *json.SyntaxError
		if _, err := strictjson.Object([]byte(text)); !errors.As(err, &syntax) {
			t.Errorf("%q: %v, want an error of syntax", text, err)
		}
	}
	for _, text := range []string{"null", "[]", `"{}"`} {
		if _, err := strictjson.Object([]byte(text)); !errors.Is(err, strictjson.ErrNotObject) {
			t.Errorf("%q: %v, want %v", text, err, strictjson.ErrNotObject)
		}
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	data := []byte(" [1,\n{\"a\": [2]} , null]")
	got, err := strictjson.List(data)
	want := []strictjson.Member{
		{Value: json.RawMessage("1"), At: 2}, {Value: json.RawMessage(`{"a": [2]}`), At: 5}, {Value: json.RawMessage("null"), At: 18},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for _, text := range []string{"null", "{}", `"[]"`} {
		if _, err := strictjson.List([]byte(text)); !errors.Is(err, strictjson.ErrNotList) {
			t.Errorf("%q: %v, want %v", text, err, strictjson.ErrNotList)
		}
	}
	var syntax *json.SyntaxError
	if _, err := strictjson.List([]byte("[1,]")); !errors.As(err, &syntax) {
		t.Errorf("%v, want an error of syntax", err)
	}
}
