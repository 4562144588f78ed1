package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"
	"unicode"
)

type keyed struct {
	Key string `json:"key"`
}

func (keyed) Text(io.Writer) {}

// What is printed as JSON ends on a terminal, too: nothing in it moves the cursor or turns text around, and a reader gets
// what was stored.
func TestJSONIsHarmless(t *testing.T) {
	t.Parallel()
	const foreign = "a\u009b31mred\u0085\u007f\u200f\u202egnp.exe\u2066\u061c\u2028\U000e0041 é ü \U0001f600 <b>&"
	var b bytes.Buffer
	f := &Factory{JSON: true}
	if err := f.PrintTo(&b, keyed{foreign}); err != nil {
		t.Fatal(err)
	}
	for _, r := range b.String() {
		if !unicode.IsPrint(r) && r != '\n' {
			t.Errorf("%U as it is: %q", r, b.String())
		}
	}
	var got keyed
	if err := json.Unmarshal(b.Bytes(), &got); err != nil || got.Key != foreign {
		t.Errorf("%q, %v", got.Key, err)
	}
	if !bytes.Contains(b.Bytes(), []byte("é ü \U0001f600 <b>&")) {
		t.Errorf("what can be read is escaped: %s", b.String())
	}
}
