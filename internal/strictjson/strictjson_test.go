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
