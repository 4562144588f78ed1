package yamljson_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/internal/yamljson"
)

func TestConvert(t *testing.T) {
	t.Parallel()
	for yaml, want := range map[string]string{
		"a: 1\nb: [x, 'y', \"z\"]\n":                      `{"a":1,"b":` + "\n" + `["x","y","z"]}`,
		"# a comment\n\na:\n  b: 1 # another\n\n  c: 2\n": "\n\n" + `{"a":` + "\n" + `{"b":1,` + "\n\n" + `"c":2}}`,
		"a: 1\na: 2\n":                                         `{"a":1,"a":` + "\n2}",
		`{"a": {"b": [true, null, 1.5e3]}}`:                    `{"a":{"b":[true,null,1.5e3]}}`,
		"day: 2026-11-21\nno: no\nyes: True\nnull: ~\ne:\n":    "{\"day\":\"2026-11-21\",\"no\":\n\"no\",\"yes\":\ntrue,\"null\":\nnull,\"e\":\nnull}",
		"0x10: a\n017: b\n1.0: c\n~: d\n2026-01-01: e\n":       "{\"0x10\":\"a\",\"017\":\n\"b\",\"1.0\":\n\"c\",\"~\":\n\"d\",\"2026-01-01\":\n\"e\"}",
		"tenant:7:*: pro\n'*': free\naddr:2001:db8:1:2::: x\n": "{\"tenant:7:*\":\"pro\",\"*\":\n\"free\",\"addr:2001:db8:1:2::\":\n\"x\"}",
		"a: |\n  one\n  two\nb: 9007199254740993\n":            "{\"a\":\"one\\ntwo\\n\",\"b\":\n\n\n9007199254740993}",
		"- !!str 7\n- '<&>\\\u2028'\n":                         "[\"7\",\n\"\\u003c\\u0026\\u003e\\\\\\u2028\"]",
	} {
		got, err := yamljson.Convert([]byte(yaml))
		if err != nil {
			t.Errorf("%q: %v", yaml, err)
			continue
		}
		if !json.Valid(got) {
			t.Errorf("%q: no JSON: %s", yaml, got)
		}
		if flat(string(got)) != flat(want) {
			t.Errorf("%q: %s, want %s", yaml, got, want)
		}
	}
}

func flat(s string) string { return strings.Join(strings.Fields(s), "") }

// Every value is on the line on which it is in the YAML.
func TestLines(t *testing.T) {
	t.Parallel()
	const document = "# 1\npolicies: # 2\n  free: # 3\n    - V4\n  pro: [V5,\n\n    V7]\n\ndefault: V9\nkeys: {a: V10,\n  b: V11}\n\n? k\n: V14\n"
	got, err := yamljson.Convert([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(string(got), "\n") {
		for _, word := range strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(`"[]{},: `, r) }) {
			if n, ok := strings.CutPrefix(word, "V"); ok && n != itoa(i+1) {
				t.Errorf("%s is on line %d: %s", word, i+1, got)
			}
		}
	}
	if n := strings.Count(string(got), "V"); n != 7 {
		t.Errorf("%d values in %s", n, got)
	}
}

func itoa(n int) string {
	text, _ := json.Marshal(n)
	return string(text)
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	const key = "secret-example"
	for _, tt := range []struct {
		yaml string
		line int
		want string
	}{
		{"", 0, "must be one document"},
		{"# only a comment\n", 0, "must be one document"},
		{"a: 1\n---\nb: 2\n", 0, "must be one document"},
		{"a: 1\nb: *" + key + "\n", 2, "aliases are not supported"},
		{"a: &" + key + " 1\n", 1, "aliases are not supported"},
		{"a: &" + key + " [1]\nb: *" + key + "\n", 1, "aliases are not supported"},
		{"&" + key + " a: 1\n", 1, "aliases are not supported"},
		{"deny:\n- *\n", 2, "did not find expected"},
		{"a: 1\nb: !" + key + " x\n", 2, "tags are not supported"},
		{"a: !!binary aGk=\n", 1, "tags are not supported"},
		{"a:\n  <<: {b: 1}\n", 2, "merges are not supported"},
		{"? [" + key + "]\n: 1\n", 1, "must be a text"},
		{"a: 1\nb: 0x10\n", 2, "as in JSON"},
		{"a: 017\n", 1, "as in JSON"},
		{"a: 1_000\n", 1, "as in JSON"},
		{"a: .inf\n", 1, "as in JSON"},
		{"a: +5\n", 1, "as in JSON"},
		{"a: 1\n\tb: 2\n", 2, "found"},
		{"a: [1,\n  " + key + "\n", 3, "did not find expected"},
		{"a: b: " + key + "\n", 1, "not allowed"},
		{"a: \"" + key + "\n", 2, "found unexpected end"},
		{"a: \x01\n", 0, "control characters"},
		{strings.Repeat("[", 20_000), 1, "exceeded max depth"},
	} {
		_, err := yamljson.Convert([]byte(tt.yaml))
		bad, ok := errors.AsType[*yamljson.Error](err)
		if !ok || bad.Line != tt.line || !strings.Contains(bad.Problem, tt.want) {
			t.Errorf("%.40q: %v, want %q on line %d", tt.yaml, err, tt.want, tt.line)
		}
		if err != nil && strings.Contains(err.Error(), key) {
			t.Errorf("%q: tells a key: %v", tt.yaml, err)
		}
	}
}

// FuzzConvert: what is converted is JSON, and no document makes it panic or names what it holds.
func FuzzConvert(f *testing.F) {
	f.Add([]byte("policies:\n  free: [10/1s]\ndefault: free\n"))
	f.Add([]byte("a: &x [*x]\n? b\n: |\n  c\n<<: {}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := yamljson.Convert(data)
		if _, ok := errors.AsType[*yamljson.Error](err); err != nil && !ok {
			t.Errorf("%T: %v", err, err)
		}
		if err == nil && !json.Valid(got) {
			t.Errorf("%q is no JSON", got)
		}
	})
}

func TestIsYAML(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"a.yaml": true, "/etc/x/b.YML": true, "a.json": false, "yaml": false, "a.yaml.json": false, "": false,
	} {
		if yamljson.IsYAML(path) != want {
			t.Errorf("%q: want %v", path, want)
		}
	}
}
