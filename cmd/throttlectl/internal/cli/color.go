package cli

import (
	"io"
	"strings"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/terminal"
)

// Colors are the values of --color.
var Colors = []string{"auto", "always", "never"}

// Style is how a text looks on a terminal with colors. Result.Text marks with it what shall stand out; it is no part of the width
// of a table's cell, so only the last cell of a line may have it.
type Style rune

// Unicode keeps these for private use: Cell replaces them in what comes from elsewhere.
const (
	Bad Style = '\ue000' + iota
	Doubtful
	Notable
	endOfStyle
)

// Of marks a text.
func (s Style) Of(text string) string { return string(rune(s)) + text + string(endOfStyle) }

var (
	toColors = strings.NewReplacer(
		string(rune(Bad)), "\x1b[1;31m", string(rune(Doubtful)), "\x1b[33m", string(rune(Notable)), "\x1b[36m", string(endOfStyle), "\x1b[0m")
	toPlain = strings.NewReplacer(
		string(rune(Bad)), "", string(rune(Doubtful)), "", string(rune(Notable)), "", string(endOfStyle), "")
)

// render replaces the marks of styles.
func render(text string, colored bool) string {
	if colored {
		return toColors.Replace(text)
	}
	return toPlain.Replace(text)
}

// Colored reports whether w gets colors. By default a terminal does, unless NO_COLOR is set (https://no-color.org) or it is dumb.
func (f *Factory) Colored(w io.Writer) bool {
	switch f.Color {
	case "always":
		return true
	case "never":
		return false
	}
	return terminal.IsTerminal(w) && f.Settings.Env("NO_COLOR") == "" && f.Settings.Env("TERM") != "dumb"
}
