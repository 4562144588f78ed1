package insight

import (
	"embed"
	"html"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

//go:embed page
var pageFiles embed.FS

// pagePolicy allows the page its own files, and nothing else: no other source, no inline script or style, no markup from strings.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// assetTypes are the files that the page asks for, by the query asset.
var assetTypes = map[string]string{
	"page.css": "text/css; charset=utf-8",
	"page.js":  "text/javascript; charset=utf-8",
	"chart.js": "text/javascript; charset=utf-8",
	"icon.svg": "image/svg+xml",
}

// servePage serves the page. Its assets keep the rest of the query, which may be what lets a request through.
func servePage(w http.ResponseWriter, query url.Values) {
	page, err := pageFiles.ReadFile("page/page.html")
	if err != nil {
		panic(err) // it is embedded
	}
	var links []string
	for name := range assetTypes {
		query.Set("asset", name)
		links = append(links, `"?asset=`+name+`"`, `"`+html.EscapeString("?"+query.Encode())+`"`)
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("Referrer-Policy", "no-referrer")
	_, _ = io.WriteString(w, strings.NewReplacer(links...).Replace(string(page))) // the client may have left
}

func serveAsset(w http.ResponseWriter, name string) {
	kind, ok := assetTypes[name]
	if !ok {
		http.Error(w, "there is no such asset", http.StatusNotFound)
		return
	}
	file, err := pageFiles.ReadFile("page/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	_, _ = w.Write(file) // the client may have left
}

// prefersHTML reports whether a client names text/html in its Accept headers, and prefers it to JSON. Wildcards don't count: what
// accepts anything, such as curl, gets JSON.
func prefersHTML(accept []string) bool {
	var page, data float64
	for media := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		name, parameters, _ := strings.Cut(media, ";")
		quality := 1.0
		for p := range strings.SplitSeq(parameters, ";") {
			if value, ok := strings.CutPrefix(strings.TrimSpace(p), "q="); ok {
				quality, _ = strconv.ParseFloat(value, 64) // what is no number is 0
			}
		}
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "text/html":
			page = quality
		case "application/json":
			data = quality
		}
	}
	return page > data
}
