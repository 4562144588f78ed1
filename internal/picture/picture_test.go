package picture_test

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/picture"
)

// texts reads a picture as XML, and returns the texts in it and how many rectangles have a class.
func texts(t *testing.T, svg []byte) (all map[string]bool, classes map[string]int) {
	t.Helper()
	all, classes = make(map[string]bool), make(map[string]int)
	for d := xml.NewDecoder(strings.NewReader(string(svg))); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all, classes
		}
		if err != nil {
			t.Fatalf("the picture is not well-formed: %v\n%s", err, svg)
		}
		switch token := token.(type) {
		case xml.CharData:
			all[string(token)] = true
		case xml.StartElement:
			for _, a := range token.Attr {
				if a.Name.Local == "class" {
					classes[a.Value]++
				}
			}
		}
	}
}

func TestBars(t *testing.T) {
	t.Parallel()
	b := picture.Bars{Title: "<&>", Note: `"a" & b`, Bars: []picture.Bar{{Name: "x<y", Value: 2, Label: "2", Highlight: true}, {Name: "]]>", Label: "0"}}}
	found, classes := texts(t, b.SVG())
	if classes["bar"] != 1 || classes["bar highlight"] != 1 || !found["<&>"] || !found["x<y"] || !found["]]>"] {
		t.Errorf("%v, %v", found, classes)
	}
	if !strings.Contains(string(b.SVG()), "<title>&lt;&amp;&gt;</title>") {
		t.Errorf("the title is not escaped:\n%s", b.SVG())
	}
	if _, classes := texts(t, picture.Bars{Title: "none"}.SVG()); classes["bar"] != 0 {
		t.Errorf("bars of nothing: %v", classes)
	}
}

func TestTimeline(t *testing.T) {
	t.Parallel()
	line := picture.Timeline{
		Title: "<&>", Note: "]]>", NoteColor: picture.Red, Caption: "time", Duration: 3 * time.Second, Step: time.Second,
		Plots: []picture.Plot{
			{Name: "one", Summary: "5 & 3", Offered: []int64{5, 0, 5}, Admitted: []int64{3}},
			{Name: "two", Percent: &picture.Percent{Name: "share", Steps: []picture.Step{{Label: "a<b"}, {At: time.Second, Percent: 100, Label: "all"}}}},
		},
	}
	svg := line.SVG()
	found, _ := texts(t, svg)
	for _, text := range []string{"<&>", "]]>", "one", "5 & 3", "two", "share", "a<b", "all", "100%", "time", "3s"} {
		if !found[text] {
			t.Errorf("no text %q in\n%s", text, svg)
		}
	}
	for _, path := range []string{`"M62.0 200.0V123.3H322.0V200.0H582.0V123.3H842.0V200.0Z"`, `"M62.0 338.0H322.0V246.0H842.0"`} {
		if !strings.Contains(string(svg), path) {
			t.Errorf("no path %s in\n%s", path, svg)
		}
	}
	line = picture.Timeline{
		Duration: 2 * time.Second, Step: time.Second, OfferedName: "reserved", AdmittedName: "used",
		Plots: []picture.Plot{
			{Offered: []int64{1, 2}, Line: &picture.Line{Name: "budget", At: 4}}, {Line: &picture.Line{Name: "budget", At: 4}},
		},
	}
	svg = line.SVG()
	found, _ = texts(t, svg)
	for text, want := range map[string]bool{"reserved": true, "used": true, "budget": true, "denied": false, "admitted": false} {
		if found[text] != want {
			t.Errorf("text %q: %t in\n%s", text, found[text], svg)
		}
	}
	if !strings.Contains(string(svg), `"M62.0 108.0H842.0"`) || strings.Count(string(svg), ">budget<") != 1 { // at the top: the largest number
		t.Errorf("no line, or no name, in\n%s", svg)
	}
	texts(t, picture.Timeline{Duration: time.Second, Step: time.Second, Plots: []picture.Plot{{}}}.SVG())
}

func TestNumber(t *testing.T) {
	for n, want := range map[float64]string{
		0: "0", 0.25: "0.25", 999: "999", 1000: "1,000", 999_999: "999,999", 1_234_567.4: "1,234,567", -1000: "-1,000", -999_999: "-999,999",
	} {
		if got := picture.Number(n); got != want {
			t.Errorf("%v is %s, want %s", n, got, want)
		}
	}
}
