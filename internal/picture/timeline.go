// Package picture draws the SVG pictures of the project: what limits admitted over time, and bars that compare figures.
//
//	svg := picture.Timeline{Title: "What the limit admits", Duration: time.Minute, Step: time.Second, Plots: plots}.SVG()
//
// A picture depends on its values alone. Texts are escaped.
package picture

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"text/template"
	"time"
)

// Colors of a note.
const (
	Green = "#2da44e"
	Red   = "#e5534b"
)

// Timeline is plots of requests over time, below each other, on one time axis and one scale.
type Timeline struct {
	Title, Note string // above the plots, left and right
	NoteColor   string // if empty, that of all text
	Unit        string // of the plots, or what else belongs above them at the right
	Caption     string // below the time axis
	Duration    time.Duration
	Step        time.Duration // what one count covers
	PlotHeight  float64       // 92 if zero
	Plots       []Plot

	OfferedName, AdmittedName string // what the areas show: "denied" and "admitted" if empty
}

// Plot is what one limit made of the traffic.
type Plot struct {
	Name, Summary     string
	Offered, Admitted []int64 // counts, one for each Step
	Percent           *Percent
	Line              *Line
}

// Line is a horizontal line at a number of counts in a second.
type Line struct {
	Name string
	At   float64
}

// Percent is a line of steps from 0 to 100 on an axis of its own at the right.
type Percent struct {
	Name  string
	Steps []Step
}

// Step is where the line changes.
type Step struct {
	At      time.Duration
	Percent float64
	Label   string
}

// The horizontal places of all plots, and the height of the first one's top.
const (
	left, right = 62.0, 842.0
	plotsTop    = 108.0
	plotGap     = 46.0 // between two plots
)

// tick is a label at one place of an axis.
type tick struct {
	At    float64
	Label string
}

// plotShape is a Plot in the units of the picture.
type plotShape struct {
	Plot
	Top, Bottom                  float64
	OfferedPath, AdmittedPath    string
	Rates, Percents, PercentStep []tick
	PercentPath                  string
	LineAt                       float64
}

// SVG draws the plots.
func (t Timeline) SVG() []byte {
	height := t.PlotHeight
	if height == 0 {
		height = 92
	}
	most := int64(1)
	for _, p := range t.Plots {
		for _, n := range p.Offered {
			most = max(most, n)
		}
	}
	perSecond := float64(most) / t.Step.Seconds()
	for _, p := range t.Plots {
		if p.Line != nil {
			perSecond = max(perSecond, p.Line.At)
		}
	}
	unit := niceStep(perSecond / 3)
	units := math.Ceil(perSecond/unit - 1e-9)
	x := func(at float64) float64 { return left + (right-left)*at/t.Duration.Seconds() }
	shape := struct {
		Timeline
		Height, Left, Right, TimesAt float64
		Plots                        []plotShape
		Times                        []tick
	}{Timeline: t, Left: left, Right: right}
	for i, p := range t.Plots {
		one := plotShape{Plot: p, Top: plotsTop + float64(i)*(height+plotGap)}
		one.Bottom = one.Top + height
		shape.TimesAt = one.Bottom
		scale := height / (units * unit) / t.Step.Seconds()
		one.OfferedPath, one.AdmittedPath = t.area(p.Offered, one.Bottom, scale), t.area(p.Admitted, one.Bottom, scale)
		for n := range int(units) + 1 {
			one.Rates = append(one.Rates, tick{one.Bottom - height*float64(n)/units, Number(float64(n) * unit)})
		}
		if p.Line != nil {
			one.LineAt = one.Bottom - height*p.Line.At/(units*unit)
		}
		if p.Percent != nil {
			one.percent(x, height)
		}
		shape.Plots = append(shape.Plots, one)
	}
	every := niceTime(t.Duration.Seconds() / 9)
	for at := time.Duration(0); at.Seconds() <= t.Duration.Seconds()+1e-9; at += every {
		shape.Times = append(shape.Times, tick{x(at.Seconds()), ShortDuration(at)})
	}
	shape.Height = shape.TimesAt + 48
	var out bytes.Buffer
	if err := timelineTemplate.Execute(&out, shape); err != nil {
		panic(err) // the template doesn't fit the shape
	}
	return out.Bytes()
}

// area is the path around counts, from the bottom and back to it.
func (t Timeline) area(counts []int64, bottom, scale float64) string {
	width := (right - left) * t.Step.Seconds() / t.Duration.Seconds()
	var b strings.Builder
	fmt.Fprintf(&b, "M%.1f %.1f", left, bottom)
	for i, n := range counts {
		if i == 0 || n != counts[i-1] {
			fmt.Fprintf(&b, "V%.1f", bottom-float64(n)*scale)
		}
		if i == len(counts)-1 || n != counts[i+1] {
			fmt.Fprintf(&b, "H%.1f", min(left+float64(i+1)*width, right)) // the last step may be cut
		}
	}
	fmt.Fprintf(&b, "V%.1fZ", bottom)
	return b.String()
}

func (p *plotShape) percent(x func(seconds float64) float64, height float64) {
	var line strings.Builder
	y := func(percent float64) float64 { return p.Bottom - height*percent/100 }
	for i, s := range p.Percent.Steps {
		format := "H%.1fV%.1f"
		if i == 0 {
			format = "M%.1f %.1f"
		}
		fmt.Fprintf(&line, format, x(s.At.Seconds()), y(s.Percent))
		p.PercentStep = append(p.PercentStep, tick{x(s.At.Seconds()), s.Label})
	}
	if len(p.Percent.Steps) > 0 {
		fmt.Fprintf(&line, "H%.1f", right)
	}
	p.PercentPath = line.String()
	for _, percent := range []float64{0, 50, 100} {
		p.Percents = append(p.Percents, tick{y(percent), fmt.Sprintf("%g%%", percent)})
	}
}

// Number is a number with a comma between thousands. Below 1,000 it has up to six digits.
func Number(n float64) string {
	text := strconv.FormatFloat(n, 'g', 6, 64)
	if math.Abs(n) < 1000 {
		return text
	}
	text = strconv.FormatFloat(math.Round(n), 'f', 0, 64)
	first := 0
	if n < 0 {
		first = 1
	}
	for i := len(text) - 3; i > first; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// niceStep is 1, 2 or 5 times a power of ten, and at least n.
func niceStep(n float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(max(n, 1e-9))))
	for _, times := range []float64{1, 2, 5} {
		if n <= times*power {
			return times * power
		}
	}
	return 10 * power
}

// niceTime is a time that people count in, and at least so many seconds.
func niceTime(seconds float64) time.Duration {
	for _, nice := range []time.Duration{
		time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond,
		time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
		time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
	} {
		if nice.Seconds() >= seconds {
			return nice
		}
	}
	return time.Duration(niceStep(seconds/86400)) * 24 * time.Hour
}

// ShortDuration is a duration without the zeros that Go prints: 10m, not 10m0s.
func ShortDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// timelineTemplate has no background, and colors that can be read on light and on dark ones.
var timelineTemplate = template.Must(template.New("timeline").Funcs(template.FuncMap{
	"add": func(a, b float64) float64 { return a + b },
	"f":   func(n float64) string { return fmt.Sprintf("%.1f", n) },
}).Parse(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {{f .Height}}" width="900" height="{{f .Height}}" role="img"
  aria-labelledby="title" font-family="-apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="12" fill="#768390">
<title id="title">{{html .Title}}: {{html .Note}}</title>
<text x="{{f .Left}}" y="24" font-size="16" font-weight="600">{{html .Title}}</text>
<text x="{{f .Right}}" y="24" text-anchor="end"{{with .NoteColor}} font-size="16" font-weight="600" fill="{{.}}"{{end}}>{{html .Note}}</text>
<rect x="62" y="42" width="12" height="12" fill="#e16f24" fill-opacity="0.55"/><text x="80" y="52">{{html (or .OfferedName "denied")}}</text>
<rect x="140" y="42" width="12" height="12" fill="#2da44e"/><text x="158" y="52">{{html (or .AdmittedName "admitted")}}</text>
<text x="{{f .Right}}" y="52" text-anchor="end">{{html .Unit}}</text>
{{- range $i, $plot := .Plots}}
<g>
<text x="{{f $.Left}}" y="{{f (add .Top -8)}}" font-size="13" font-weight="600" fill="#2da44e">{{html .Name}}</text>
<text x="{{f $.Right}}" y="{{f (add .Top -8)}}" text-anchor="end">{{html .Summary}}</text>
<path d="{{.OfferedPath}}" fill="#e16f24" fill-opacity="0.55"/>
<path d="{{.AdmittedPath}}" fill="#2da44e"/>
<g text-anchor="end">
{{- range .Rates}}
<path d="M{{f $.Left}} {{f .At}}H{{f $.Right}}" stroke="#768390" stroke-opacity="0.3"/>
<text x="{{f (add $.Left -8)}}" y="{{f (add .At 4)}}">{{.Label}}</text>
{{- end}}
</g>
{{- if .Line}}
{{- if eq $i 0}}
<path d="M226 48H250" stroke="#a371f7" stroke-width="3"/><text x="256" y="52">{{html .Line.Name}}</text>
{{- end}}
<path d="M{{f $.Left}} {{f .LineAt}}H{{f $.Right}}" stroke="#a371f7" stroke-width="2"/>
{{- end}}
{{- if .Percent}}
<path d="M226 48H250" stroke="#a371f7" stroke-width="3"/><text x="256" y="52">{{html .Percent.Name}}</text>
<g font-weight="600">
{{- range .PercentStep}}
<path d="M{{f .At}} {{f $plot.Top}}V{{f $plot.Bottom}}" stroke="#768390" stroke-opacity="0.5" stroke-dasharray="3 3"/>
<text x="{{f (add .At 2)}}" y="{{f (add $plot.Top -8)}}">{{html .Label}}</text>
{{- end}}
</g>
<path d="{{.PercentPath}}" fill="none" stroke="#a371f7" stroke-width="3" stroke-linejoin="round"/>
<g fill="#a371f7">
{{- range .Percents}}
<text x="{{f (add $.Right 8)}}" y="{{f (add .At 4)}}">{{.Label}}</text>
{{- end}}
</g>
{{- end}}
</g>
{{- end}}
<g text-anchor="middle">
{{- range .Times}}
<path d="M{{f .At}} {{f $.TimesAt}}v4" stroke="#768390"/>
<text x="{{f .At}}" y="{{f (add $.TimesAt 18)}}">{{.Label}}</text>
{{- end}}
<text x="{{f (add .Left 390)}}" y="{{f (add .TimesAt 38)}}">{{html .Caption}}</text>
</g>
</svg>
`))
