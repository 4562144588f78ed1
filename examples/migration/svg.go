package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strings"
	"text/template"
	"time"
)

// The plot, in the picture's units.
const (
	left, right = 62.0, 842.0
	top, bottom = 92.0, 312.0
)

// picture is the release over time, as the template wants it.
type picture struct {
	Left, Right, Top, Bottom float64
	Over, Summary, Verdict   string // the last one is a colour
	Allowed, Denied, Percent string // points and a path
	Rates, Percents, Seconds []tick
	Steps                    []tick
}

// tick is a label, at one place of an axis.
type tick struct {
	At    float64
	Label string
}

// draw writes the picture of the release.
func (r *release) draw(file string, total outcome) error {
	data, err := drawing(r.ledger.slices, r.ledger.width, r.marks, total)
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

func drawing(counts []pair, width time.Duration, marks []mark, total outcome) ([]byte, error) {
	if n := int(total.took / width); n < len(counts) {
		counts = counts[:n] // the last one is not complete
	}
	most := 0
	for _, c := range counts {
		most = max(most, c.allowed+c.denied)
	}
	unit := niceStep(float64(most) / width.Seconds() / 3)
	units := max(1, math.Ceil(float64(most)/width.Seconds()/unit))
	x := func(at time.Duration) float64 { return left + (right-left)*at.Seconds()/total.took.Seconds() }
	y := func(share float64) float64 { return bottom - (bottom-top)*share }
	rate := func(n int) float64 { return y(float64(n) / width.Seconds() / unit / units) }

	p := picture{
		Left: left, Right: right, Top: top, Bottom: bottom,
		Verdict: "#2da44e",
		Over:    fmt.Sprintf("over the limit: %d", total.over),
		Summary: fmt.Sprintf("%d requests, %d errors, %d hand-overs", total.requests, total.errors, total.handed),
	}
	if total.over > 0 {
		p.Verdict = "#e5534b"
	}
	p.Allowed = area(counts, width, x, func(pair) float64 { return bottom }, func(c pair) float64 { return rate(c.allowed) })
	p.Denied = area(counts, width, x, func(c pair) float64 { return rate(c.allowed) }, func(c pair) float64 { return rate(c.allowed + c.denied) })
	var line strings.Builder
	for i, m := range marks {
		if i == 0 {
			fmt.Fprintf(&line, "M%.1f %.1f", x(m.at), y(m.percent/100))
		} else {
			fmt.Fprintf(&line, "H%.1fV%.1f", x(m.at), y(m.percent/100))
		}
		label := m.redis
		switch len(marks) - i {
		case 1:
			label = "Redis alone"
		case 2:
			label += " until nothing is carried over"
		}
		p.Steps = append(p.Steps, tick{x(m.at), label})
	}
	fmt.Fprintf(&line, "H%.1f", right)
	p.Percent = line.String()

	for i := range int(units) + 1 {
		p.Rates = append(p.Rates, tick{y(float64(i) / units), fmt.Sprint(float64(i) * unit)})
	}
	for _, percent := range []int{0, 50, 100} {
		p.Percents = append(p.Percents, tick{y(float64(percent) / 100), fmt.Sprintf("%d%%", percent)})
	}
	every := niceStep(total.took.Seconds() / 10)
	for at := 0.0; at <= total.took.Seconds(); at += every {
		p.Seconds = append(p.Seconds, tick{x(time.Duration(at * float64(time.Second))), fmt.Sprintf("%gs", at)})
	}
	var out bytes.Buffer
	err := svg.Execute(&out, p)
	return out.Bytes(), err
}

// area is the points of what lies between two lines: along the upper one and back along the lower one.
func area(counts []pair, width time.Duration, x func(time.Duration) float64, lower, upper func(pair) float64) string {
	var there, back []string
	for i, c := range counts {
		at := x(time.Duration(i)*width + width/2)
		if i == 0 {
			at = left
		}
		if i == len(counts)-1 {
			at = right
		}
		there = append(there, fmt.Sprintf("%.1f,%.1f", at, upper(c)))
		back = append([]string{fmt.Sprintf("%.1f,%.1f", at, lower(c))}, back...)
	}
	return strings.Join(append(there, back...), " ")
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

// svg has no background, and colours that can be read on a light and on a dark one.
var svg = template.Must(template.New("svg").Funcs(template.FuncMap{
	"add": func(a, b float64) float64 { return a + b },
	"f":   func(n float64) string { return fmt.Sprintf("%.1f", n) },
}).Parse(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 360" width="900" height="360" role="img" aria-labelledby="title"
  font-family="-apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="12" fill="#768390">
<title id="title">Requests per second while a rate limiter moves from Memcached to Redis; {{.Over}}</title>
<text x="{{f .Left}}" y="22" font-size="16" font-weight="600">From Memcached to Redis, under load</text>
<text x="{{f .Right}}" y="22" font-size="16" font-weight="600" text-anchor="end" fill="{{.Verdict}}">{{.Over}}</text>
<text x="{{f .Right}}" y="44" text-anchor="end">{{.Summary}}</text>
<g>
<rect x="62" y="34" width="12" height="12" fill="#2da44e" fill-opacity="0.75"/><text x="80" y="44">admitted a second</text>
<rect x="200" y="34" width="12" height="12" fill="#e16f24" fill-opacity="0.55"/><text x="218" y="44">denied a second</text>
<path d="M326 40H350" stroke="#a371f7" stroke-width="3"/><text x="356" y="44">keys on Redis</text>
</g>
<polygon fill="#2da44e" fill-opacity="0.75" points="{{.Allowed}}"/>
<polygon fill="#e16f24" fill-opacity="0.55" points="{{.Denied}}"/>
<g stroke="#768390" stroke-opacity="0.5">
{{- range .Rates}}
<path d="M{{f $.Left}} {{f .At}}H{{f $.Right}}" stroke-opacity="0.25"/>
{{- end}}
{{- range .Steps}}
<path d="M{{f .At}} {{f $.Top}}V{{f $.Bottom}}" stroke-dasharray="3 3"/>
{{- end}}
</g>
<path d="{{.Percent}}" fill="none" stroke="#a371f7" stroke-width="3" stroke-linejoin="round"/>
<g text-anchor="end">
{{- range .Rates}}
<text x="{{f (add $.Left -8)}}" y="{{f (add .At 4)}}">{{.Label}}</text>
{{- end}}
</g>
<g fill="#a371f7">
{{- range .Percents}}
<text x="{{f (add $.Right 8)}}" y="{{f (add .At 4)}}">{{.Label}}</text>
{{- end}}
</g>
<g font-weight="600">
{{- range .Steps}}
<text x="{{f (add .At 2)}}" y="{{f (add $.Top -8)}}">{{.Label}}</text>
{{- end}}
</g>
<g text-anchor="middle">
{{- range .Seconds}}
<text x="{{f .At}}" y="{{f (add $.Bottom 18)}}">{{.Label}}</text>
{{- end}}
<text x="{{f (add $.Left 390)}}" y="{{f (add $.Bottom 38)}}">time since the clients started</text>
</g>
</svg>
`))
