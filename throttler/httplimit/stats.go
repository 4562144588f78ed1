package httplimit

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/sluice-go/sluice/throttler"
)

// StatsConfig configures a StatsHandler. The zero value is ready to use.
type StatsConfig struct {
	// ClearKeys shows the keys that are denied most as they are. False: hashed, see throttler.Throttler.KeyHash.
	ClearKeys bool
}

const (
	defaultTop = 20
	mostTop    = 1000
)

// StatsHandler serves what t has decided, as throttler.Stats in JSON: for an operator to look at, or a program to poll. The
// query top=N asks for that many of the keys that are denied most, from 0 to 1,000, in place of 20. What is counted is
// for the Throttler's Config.Stats to say.
//
// It asks nobody for a password: serve it where clients don't get to. It panics if t is nil.
func StatsHandler(t *throttler.Throttler, cfg StatsConfig) http.Handler {
	if t == nil {
		panic("httplimit: nil throttler")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			(&problem{Status: http.StatusMethodNotAllowed, Title: "Method Not Allowed", Detail: "There is GET only."}).write(w)
			return
		}
		top, err := defaultTop, error(nil)
		if asked := r.URL.Query().Get("top"); asked != "" {
			top, err = strconv.Atoi(asked)
		}
		if err != nil || top < 0 || top > mostTop {
			(&problem{Status: http.StatusBadRequest, Title: "Bad Request", Detail: "The query top must be from 0 to 1000."}).write(w)
			return
		}
		stats := t.Stats()
		if stats.TopDenied = t.TopDenied(top); cfg.ClearKeys {
			stats.TopDenied = t.TopDeniedInClear(top)
		}
		body, err := json.Marshal(stats)
		if err != nil { // no limit that is in use has no text
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Cache-Control", "no-store")
		_, _ = w.Write(append(body, '\n')) // to a client who may have gone
	})
}
