package picture

import (
	"bytes"
	"text/template"
)

// Bars compares figures by the length of horizontal bars.
type Bars struct {
	Title, Note string
	Bars        []Bar // from the top
}

// Bar is one figure. Label is the figure as text.
type Bar struct {
	Name      string
	Value     float64 // not negative
	Label     string
	Highlight bool
}

// BarsWidth is the width of all pictures of bars.
const BarsWidth = 760

const (
	barsLeft   = 130 // the width of the column of names
	barsLabel  = 90  // the width of the column of labels
	barsTop    = 66
	barsHeight = 26 // of a bar, with the gap below it
)

// SVG draws the bars, on a card with colors of its own that follow the reader's light or dark scheme.
func (b Bars) SVG() []byte {
	type shape struct {
		Bar
		Y, TextY       int
		Length, LabelX float64
	}
	picture := struct {
		Bars
		Width, Height, CardHeight int
		Shapes                    []shape
	}{Bars: b, Width: BarsWidth}
	picture.Height = barsTop + barsHeight*len(b.Bars) + 14
	picture.CardHeight = picture.Height - 1
	most := 0.0
	for _, bar := range b.Bars {
		most = max(most, bar.Value)
	}
	for i, bar := range b.Bars {
		s := shape{Bar: bar, Y: barsTop + i*barsHeight, Length: 1}
		if most > 0 {
			s.Length = max(1, bar.Value/most*(BarsWidth-barsLeft-barsLabel))
		}
		s.TextY, s.LabelX = s.Y+14, barsLeft+s.Length+8
		picture.Shapes = append(picture.Shapes, s)
	}
	var out bytes.Buffer
	if err := barsTemplate.Execute(&out, picture); err != nil {
		panic(err) // the template doesn't fit the shape
	}
	return out.Bytes()
}

var barsTemplate = template.Must(template.New("bars").Parse(
	`<svg xmlns="http://www.w3.org/2000/svg" width="{{.Width}}" height="{{.Height}}" viewBox="0 0 {{.Width}} {{.Height}}" role="img">
<title>{{html .Title}}</title>
<style>
	.card { fill: #ffffff; stroke: #d0d7de } text { fill: #1f2328; font: 13px system-ui, sans-serif }
	.title { font-size: 16px; font-weight: 600 } .note { fill: #59636e; font-size: 12px }
	.bar { fill: #9aa4af } .highlight { fill: #0969da }
	@media (prefers-color-scheme: dark) {
		.card { fill: #0d1117; stroke: #3d444d } text { fill: #f0f6fc } .note { fill: #9198a1 }
		.bar { fill: #656c76 } .highlight { fill: #4493f8 }
	}
</style>
<rect class="card" x="0.5" y="0.5" width="759" height="{{.CardHeight}}" rx="8"/>
<text class="title" x="16" y="28">{{html .Title}}</text>
<text class="note" x="16" y="48">{{html .Note}}</text>
{{- range .Shapes}}
<text x="122" y="{{.TextY}}" text-anchor="end">{{html .Name}}</text>
{{- /**/ -}}
<rect class="bar{{if .Highlight}} highlight{{end}}" x="130" y="{{.Y}}" width="{{printf "%.1f" .Length}}" height="20" rx="3"/>
{{- /**/ -}}
<text x="{{printf "%.1f" .LabelX}}" y="{{.TextY}}">{{html .Label}}</text>
{{- end}}
</svg>
`))
