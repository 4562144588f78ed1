package simulate

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
)

// The picture's units: a panel for each policy, below each other, with one time axis.
const (
	pictureLeft, pictureRight = 62.0, 842.0
	pictureTop                = 84.0
	panelHeight, panelPlot    = 138.0, 92.0 // with the gap below it; of the plot alone
)

// drawing is a simulation as the template wants it.
type drawing struct {
	Height, Left, Right float64
	Title, Note, Unit   string
	Panels              []panel
	Times               []mark
	TimesAt             float64
}

// panel is what one policy made of the traffic.
type panel struct {
	Top, Bottom      float64
	Name, Summary    string
	Offered, Allowed string // paths
	Rates            []mark
}

// mark is a label, at one place of an axis.
type mark struct {
	At    float64
	Label string
}

func (s *simulation) picture(description string) []byte {
	t := &s.timeline
	most := int64(1)
	for _, n := range t.offered {
		most = max(most, n)
	}
	perSecond := float64(most) / t.width().Seconds()
	unit := niceStep(perSecond / 3)
	units := math.Ceil(perSecond/unit - 1e-9)
	lasts := float64(len(t.offered)) * t.width().Seconds()
	p := drawing{
		Left: pictureLeft, Right: pictureRight, Title: "What each policy admits", Unit: "requests a second",
		Note: fmt.Sprintf("%s; slices of %v", description, t.width()),
	}
	if s.cost != s.requests {
		p.Unit = "cost a second"
	}
	for i, c := range s.candidates {
		top := pictureTop + 24 + float64(i)*panelHeight
		draw := plot{bottom: top + panelPlot, slice: (pictureRight - pictureLeft) / float64(len(t.offered))}
		draw.scale = panelPlot / (units * unit) / t.width().Seconds()
		one := panel{
			Top: top, Bottom: draw.bottom, Name: c.name, Offered: draw.area(t.offered), Allowed: draw.area(t.admitted[i]),
			Summary: fmt.Sprintf("%d admitted, %d denied", c.admitted, c.denied),
		}
		for _, peak := range c.peaks {
			span := time.Duration(peak.length) * time.Microsecond
			one.Summary += fmt.Sprintf("; most in any %s: %d", cli.ShortDuration(span), peak.most)
		}
		for n := range int(units) + 1 {
			one.Rates = append(one.Rates, mark{
				draw.bottom - panelPlot*float64(n)/units, strconv.FormatFloat(float64(n)*unit, 'g', 6, 64),
			})
		}
		p.Panels = append(p.Panels, one)
		p.TimesAt = draw.bottom
	}
	every := niceTime(lasts / 9)
	for at := time.Duration(0); at.Seconds() <= lasts+1e-9; at += every {
		p.Times = append(p.Times, mark{pictureLeft + (pictureRight-pictureLeft)*at.Seconds()/lasts, cli.ShortDuration(at)})
	}
	p.Height = p.TimesAt + 48
	var out bytes.Buffer
	if err := pictureTemplate.Execute(&out, p); err != nil {
		panic(err) // the template doesn't fit the picture
	}
	return out.Bytes()
}

// plot is where slices are drawn.
type plot struct {
	bottom, slice, scale float64
}

// area is the path around steps, from the bottom and back to it.
func (p plot) area(counts []int64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "M%.1f %.1f", pictureLeft, p.bottom)
	for i, n := range counts {
		if i == 0 || n != counts[i-1] {
			fmt.Fprintf(&b, "V%.1f", p.bottom-float64(n)*p.scale)
		}
		if i == len(counts)-1 || n != counts[i+1] {
			fmt.Fprintf(&b, "H%.1f", pictureLeft+float64(i+1)*p.slice)
		}
	}
	fmt.Fprintf(&b, "V%.1fZ", p.bottom)
	return b.String()
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

// pictureTemplate has no background, and colours that can be read on a light and on a dark one.
var pictureTemplate = template.Must(template.New("picture").Funcs(template.FuncMap{
	"add": func(a, b float64) float64 { return a + b },
	"f":   func(n float64) string { return fmt.Sprintf("%.1f", n) },
}).Parse(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {{f .Height}}" width="900" height="{{f .Height}}" role="img"
  aria-labelledby="title" font-family="-apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="12" fill="#768390">
<title id="title">{{html .Title}}: {{html .Note}}</title>
<text x="{{f .Left}}" y="24" font-size="16" font-weight="600">{{html .Title}}</text>
<text x="{{f .Right}}" y="24" text-anchor="end">{{html .Note}}</text>
<rect x="62" y="42" width="12" height="12" fill="#e16f24" fill-opacity="0.55"/><text x="80" y="52">denied</text>
<rect x="140" y="42" width="12" height="12" fill="#2da44e"/><text x="158" y="52">admitted</text>
<text x="{{f .Right}}" y="52" text-anchor="end">{{.Unit}}</text>
{{- range .Panels}}
<g>
<text x="{{f $.Left}}" y="{{f (add .Top -8)}}" font-size="13" font-weight="600" fill="#2da44e">{{html .Name}}</text>
<text x="{{f $.Right}}" y="{{f (add .Top -8)}}" text-anchor="end">{{.Summary}}</text>
<path d="{{.Offered}}" fill="#e16f24" fill-opacity="0.55"/>
<path d="{{.Allowed}}" fill="#2da44e"/>
<g text-anchor="end">
{{- range .Rates}}
<path d="M{{f $.Left}} {{f .At}}H{{f $.Right}}" stroke="#768390" stroke-opacity="0.3"/>
<text x="{{f (add $.Left -8)}}" y="{{f (add .At 4)}}">{{.Label}}</text>
{{- end}}
</g>
</g>
{{- end}}
<g text-anchor="middle">
{{- range .Times}}
<path d="M{{f .At}} {{f $.TimesAt}}v4" stroke="#768390"/>
<text x="{{f .At}}" y="{{f (add $.TimesAt 18)}}">{{.Label}}</text>
{{- end}}
<text x="{{f (add .Left 390)}}" y="{{f (add .TimesAt 38)}}">time since the first request</text>
</g>
</svg>
`))
