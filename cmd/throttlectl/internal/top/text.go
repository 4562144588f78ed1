package top

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/terminal"
)

const (
	shareWidth = 8
	trendWidth = 16
)

func (v *view) Text(w io.Writer) {
	fmt.Fprintf(w, "%s, %d of %d processes\n\n", v.Time, v.answers, len(v.Processes))
	v.alarmText(w)
	v.processText(w)
	trend := ""
	if v.trends != nil {
		trend = "TREND\t"
	}
	fmt.Fprintf(w, "\nPOLICY\tALLOWED/S\tDENIED/S\tERRORS/S\tEXPOSED/S\t%sDENIED\t\tSOURCES\tGUARANTEES\tLIMITS\n", trend)
	for _, p := range v.Policies {
		share := "-"
		if p.latest.decisions() > 0 {
			share = cli.Percent(p.DenialShare)
		}
		if v.trends != nil {
			trend = terminal.Sparkline(v.trends[p.Policy], trendWidth) + "\t"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s%s\t%s\t%s\t%s\t%s\n", cli.Cell(p.Policy),
			v.rate(p.latest.Allowed), v.rate(p.latest.Denied), v.rate(p.latest.Errors), v.rate(p.latest.Exposure), trend, share,
			terminal.Bar(p.DenialShare, shareWidth), shares(p.Sources), shares(p.Guarantees), cli.Cell(cli.Limits(p.Limits)))
	}
	if len(v.TopDenied) > 0 {
		fmt.Fprint(w, "\nDENIED MOST\tDENIED\tOVER\n")
		for _, k := range v.TopDenied {
			fmt.Fprintf(w, "%s\t%d\t%d\n", v.shown(k.Key), k.Denied, k.Over)
		}
	}
	v.parts.text(w, time.Time(v.Time))
	if s := v.Shadow; s != nil {
		fmt.Fprint(w, "\nSHADOW\tALLOWED/S\tDENIED/S\tFAILED/S\tDROPPED/S\n")
		fmt.Fprintf(w, "\t%s\t%s\t%s\t%s\n", v.rate(s.Allowed), v.rate(s.Denied), v.rate(s.Failed), v.rate(s.Dropped))
	}
}

func (v *view) processText(w io.Writer) {
	fmt.Fprint(w, "PROCESS\tREGISTRY\tSTATE\n")
	for _, p := range v.Processes {
		registry, state := "-", "ok"
		if p.Restarted {
			state = "ok, restarted"
		}
		if r := p.Registry; r != nil {
			registry = cli.Cell(strings.TrimSpace(r.Version + " " + r.Digest[:min(12, len(r.Digest))]))
			if r.Refused != "" {
				state = strings.TrimPrefix(state, "ok") + ", its file is refused: " + cli.Cell(strings.ReplaceAll(r.Refused, "\n", "; "))
			}
		}
		state = strings.TrimPrefix(state, ", ")
		if p.Error != "" {
			state = cli.Cell(p.Error)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", cli.Cell(p.URL), registry, state)
	}
}

// alarmText warns of policies that the failure policy decides, and of primaries that get no calls.
func (v *view) alarmText(w io.Writer) {
	var alarms []string
	for _, p := range v.Policies {
		if share, out := p.Sources[fallback]; out {
			alarms = append(alarms, fmt.Sprintf("OUTAGE: %s of the decisions under policy %s are made without the backend",
				cli.Percent(share), cli.Cell(p.Policy)))
		}
	}
	for _, n := range v.Nodes {
		if n.Role == "primary" && n.NotClosed > 0 {
			alarms = append(alarms, fmt.Sprintf("DOWN: the primary of group %s, %s: %s", cli.Cell(n.Group), cli.Cell(n.Node.Node), n.state()))
		}
	}
	for _, alarm := range alarms {
		fmt.Fprintln(w, alarm)
	}
	if len(alarms) > 0 {
		fmt.Fprintln(w)
	}
}

// rate is a number a second, or "-" if not known.
func (v *view) rate(n float64) string {
	if !v.rates {
		return "-"
	}
	return fmt.Sprintf("%.1f", n)
}

// shares lists shares by name, the largest first.
func shares(parts map[string]float64) string {
	names := slices.SortedFunc(maps.Keys(parts), func(a, b string) int {
		return cmp.Or(cmp.Compare(parts[b], parts[a]), strings.Compare(a, b))
	})
	var texts []string
	for _, name := range names {
		texts = append(texts, cli.Cell(name)+" "+cli.Percent(parts[name]))
	}
	return cli.Cell(strings.Join(texts, " "))
}
