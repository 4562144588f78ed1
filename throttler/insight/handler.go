package insight

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/lease"
)

// HandlerConfig configures a Handler. The zero value is ready to use. Each request calls the functions, which must be fast. Without
// a function the Report, and the page, lack what it returns.
type HandlerConfig struct {
	// ClearKeys shows the most denied keys, and those near their limits, as they are. False: hashed, see Recorder.KeyHash.
	ClearKeys bool

	// Nodes returns the nodes of a router. For a router.Router r:
	//
	//	func() []insight.Node {
	//		var nodes []insight.Node
	//		for _, n := range r.Nodes() {
	//			nodes = append(nodes, insight.Node{
	//				Group: n.Group, Node: n.Node, Role: n.Role.String(), Breaker: n.Breaker, Readable: n.Readable, Latency: n.Latency,
	//				LastHeartbeat: n.LastHeartbeat, RTT: n.Heartbeat.RTT, Ahead: n.Heartbeat.Ahead, Age: n.Age,
	//			})
	//		}
	//		return nodes
	//	}
	Nodes func() []Node

	// Router returns the counts of a router: RouterStats(r.Stats()) for a router.Router r.
	Router func() RouterStats

	// Lease returns the counts of a lease: Stats of a lease.Lease.
	Lease func() lease.Stats

	// Dual and Flag return the progress of a migration: Stats of a dual.Dual, and the flag that decides for it.
	Dual func() dual.Stats
	Flag func() Flag
}

const (
	defaultTop = 20
	maxTop     = 1000
)

// Handler serves a Report of r as JSON to a program, and to a browser, which prefers text/html, a page that shows the same live.
// The query top=N asks for that many of the most denied keys and of the keys near their limits, from 0 to 1,000; the default is 20.
//
// The page loads its script and style from the same path, and nothing from elsewhere. It requires no authentication: serve it on
// an address that clients can't reach. It panics if r is nil.
func Handler(r *Recorder, cfg HandlerConfig) http.Handler {
	if r == nil {
		panic("insight: nil recorder")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Vary", "Accept")
		h.Set("X-Content-Type-Options", "nosniff")
		if req.Method != http.MethodGet && req.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "the method must be GET or HEAD", http.StatusMethodNotAllowed)
			return
		}
		query := req.URL.Query()
		top, err := defaultTop, error(nil)
		if given := query.Get("top"); given != "" {
			top, err = strconv.Atoi(given)
		}
		if err != nil || top < 0 || top > maxTop {
			http.Error(w, "the query top must be from 0 to 1000", http.StatusBadRequest)
			return
		}
		switch name := query.Get("asset"); {
		case name != "":
			serveAsset(w, name)
			return
		case prefersHTML(req.Header.Values("Accept")):
			servePage(w, query)
			return
		}
		body, err := json.Marshal(cfg.report(r, top))
		if err != nil { // every valid limit has a text
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		h.Set("Content-Type", "application/json")
		_, _ = w.Write(append(body, '\n')) // the client may have left
	})
}
