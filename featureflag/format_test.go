package featureflag

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Internal: what a file holds besides the flag that is asked for can't be seen from outside.

func TestParseFlags(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		want map[string]Value
	}{
		{`{}`, map[string]Value{}},
		{`{"a":{"percent":12.5,"version":7}}`, map[string]Value{"a": {12.5, 7, false}}},
		{`{"a/b:c.d-e_F": {"killed":true,"version":274877906943,"percent":1e2}, "b":{"percent":-0,"version":1,"killed":false}}` + "\n",
			map[string]Value{"a/b:c.d-e_F": {100, 1<<38 - 1, true}, "b": {0, 1, false}}},
	} {
		got, err := parseFlags([]byte(tt.text))
		if err != nil || !maps.Equal(got, tt.want) {
			t.Errorf("%s: %v, %v; want %v", tt.text, got, err, tt.want)
		}
	}
}

func TestParseFlagsRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want string }{
		{"", "line 1: unexpected end of JSON input"},
		{"{\n  \"a\": {\"percent\": 1,\n\n", "line 4: unexpected end of JSON input"},
		{"{\n\"a\": x}", "line 2: invalid character 'x' looking for beginning of value"},
		{`{} {}`, "line 1: invalid character '{' after top-level value"},
		{"\xef\xbb\xbf{}", "line 1: invalid character 'ï' looking for beginning of value"},
		{`[]`, `flags = "[]": must be an object`},
		{`null`, `flags = "null": must be an object`},
		{`{"a":5}`, `"a" = "5": must be an object`},
		{`{"a":{}}`, `"a": percent = missing: must be there`},
		{`{"a":{"percent":1}}`, `"a": version = missing: must be there`},
		{`{"a":{"version":1}}`, `"a": percent = missing: must be there`},
		{`{"a":{"percent":"1","version":1}}`, `"a": percent = "\"1\"": must be a number from 0 to 100`},
		{`{"a":{"percent":null,"version":1}}`, `"a": percent = "null": must be a number from 0 to 100`},
		{`{"a":{"percent":1e999,"version":1}}`, `"a": percent = "1e999": must be a number from 0 to 100`},
		{`{"a":{"percent":100.001,"version":1}}`, `"a": percent = 100.001: must be 0 to 100`},
		{`{"a":{"percent":-0.001,"version":1}}`, `"a": percent = -0.001: must be 0 to 100`},
		{`{"a":{"percent":1,"version":0}}`, `"a": version = "0": must be a whole number from 1 to 274877906943`},
		{`{"a":{"percent":1,"version":274877906944}}`, `"a": version = "274877906944": must be a whole number from 1 to 274877906943`},
		{`{"a":{"percent":1,"version":1.0}}`, `"a": version = "1.0": must be a whole number from 1 to 274877906943`},
		{`{"a":{"percent":1,"version":-1}}`, `"a": version = "-1": must be a whole number from 1 to 274877906943`},
		{`{"a":{"percent":1,"version":1,"killed":1}}`, `"a": killed = "1": must be true or false`},
		{`{"a":{"percent":1,"version":1,"killed":"true"}}`, `"a": killed = "\"true\"": must be true or false`},
		{`{"a":{"percent":1,"version":1,"killed":null}}`, `"a": killed = "null": must be true or false`},
		{`{"a":{"percent":1,"version":1,"Killed":true}}`, `"a" = "Killed": unknown: want percent, version and killed`},
		{`{"a":{"percent":1,"version":1,"percent":1}}`, `"a" = "percent": is there twice`},
		{`{"a":{"percent":1,"version":1},"a":{"percent":1,"version":1}}`, `flags = "a": is there twice`},
		{`{"a b":{"percent":1,"version":1}}`, `Name = "a b": must be 1 to 128 of A-Z a-z 0-9 _ - . : /`},
		{`{"":{"percent":1,"version":1}}`, `Name = "": must be 1 to 128 of A-Z a-z 0-9 _ - . : /`},
		{`{"a":{"percent":-1,"version":-1},"b":{"percent":1,"version":1,"x":0}}`, `"a": percent = -1: must be 0 to 100` + "\n" +
			`"a": version = "-1": must be a whole number from 1 to 274877906943` + "\n" + `"b" = "x": unknown: want percent, version and killed`},
	} {
		got, err := parseFlags([]byte(tt.text))
		if err == nil || err.Error() != tt.want || got != nil {
			t.Errorf("%s: %v, %v; want %s", tt.text, got, err, tt.want)
		}
		if e := (*Error)(nil); !strings.HasPrefix(tt.want, "line") && !errors.As(err, &e) {
			t.Errorf("%s: not an *Error: %v", tt.text, err)
		}
	}
}

func drawFlags(t *rapid.T) map[string]Value {
	return rapid.MapOfN(rapid.StringMatching(`[A-Za-z0-9_\-.:/]{1,10}`), rapid.Custom(func(t *rapid.T) Value {
		return Value{
			Percent: rapid.Float64Range(0, 100).Draw(t, "percent"),
			Version: rapid.Uint64Range(1, maxGeneration).Draw(t, "version"),
			Killed:  rapid.Bool().Draw(t, "killed"),
		}
	}), 0, 4).Draw(t, "flags")
}

func TestFormatIsTheInverseOfParse(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		flags := drawFlags(t)
		text := formatFlags(flags)
		if got, err := parseFlags(text); err != nil || !maps.Equal(got, flags) {
			t.Fatalf("%s: %v, %v; want %v", text, got, err, flags)
		}
		for name, v := range flags { // a Value as others print it reads back, too
			text, err := json.Marshal(v)
			if got, parseErr := parseValue(name, text); err != nil || parseErr != nil || got != v {
				t.Fatalf("%s: %v, %v, %v; want %v", text, got, err, parseErr, v)
			}
		}
	})
}

// Whatever is written half is refused, unless nothing but the white space at its end is missing.
func TestHalfAFileIsRefused(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := bytes.TrimSpace(formatFlags(drawFlags(t)))
		for n := range text {
			if got, err := parseFlags(text[:n]); err == nil {
				t.Fatalf("%s: accepted as %v", text[:n], got)
			}
		}
	})
}

func FuzzParseFlags(f *testing.F) {
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"a":{"percent":12.5,"version":7,"killed":true},"b":{"percent":0,"version":1}}`))
	f.Add([]byte(`{"a":{"percent":1e-300,"version":274877906943,"killed":false}}`))
	f.Add([]byte(`{"a":{"percent":1,"version":1,"percent":2}}`))
	f.Add([]byte(`{"\u0061":{"percent":1,"version":1},"a":{"percent":1,"version":1}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		flags, err := parseFlags(data)
		if err != nil {
			if flags != nil || len(err.Error()) > 1000+300*bytes.Count(data, []byte(`"`)) {
				t.Errorf("%v, and an error of %d bytes", flags, len(err.Error()))
			}
			return
		}
		for name, v := range flags {
			if checkName(name) != nil || checkPercent("", v.Percent) != nil || v.Version < 1 || v.Version > maxGeneration {
				t.Errorf("accepted %q: %v", name, v)
			}
		}
		if again, err := parseFlags(formatFlags(flags)); err != nil || !maps.Equal(flags, again) {
			t.Errorf("%v is written and read as %v, %v", flags, again, err)
		}
		var plain map[string]Value // strict is a part of what encoding/json reads, and means the same
		if err := json.Unmarshal(data, &plain); err != nil || !maps.Equal(flags, plain) {
			t.Errorf("%v, but encoding/json reads %v, %v", flags, plain, err)
		}
	})
}
