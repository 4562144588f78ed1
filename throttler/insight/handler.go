package insight

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// HandlerConfig configures a Handler. The zero value is ready to use.
type HandlerConfig struct {
	// ClearKeys shows the most denied keys as they are. False: hashed, see Recorder.KeyHash.
	ClearKeys bool
}

const (
	defaultTop = 20
	maxTop     = 1000
)

// Handler serves the Stats of r as JSON, for an operator or a program that polls. The query top=N asks for that many of the
// most denied keys, from 0 to 1,000; the default is 20.
//
// It requires no authentication: serve it on an address that clients can't reach. It panics if r is nil.
func Handler(r *Recorder, cfg HandlerConfig) http.Handler {
	if r == nil {
		panic("insight: nil recorder")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		if req.Method != http.MethodGet && req.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "the method must be GET or HEAD", http.StatusMethodNotAllowed)
			return
		}
		top, err := defaultTop, error(nil)
		if query := req.URL.Query().Get("top"); query != "" {
			top, err = strconv.Atoi(query)
		}
		if err != nil || top < 0 || top > maxTop {
			http.Error(w, "the query top must be from 0 to 1000", http.StatusBadRequest)
			return
		}
		stats := r.Stats()
		if stats.TopDenied = r.TopDenied(top); cfg.ClearKeys {
			stats.TopDenied = r.TopDeniedInClear(top)
		}
		body, err := json.Marshal(stats)
		if err != nil { // every valid limit has a text
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		h.Set("Content-Type", "application/json")
		_, _ = w.Write(append(body, '\n')) // the client may have gone
	})
}
