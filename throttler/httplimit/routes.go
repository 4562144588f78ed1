package httplimit

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// Route is what differs for the requests that a pattern of [Config.Routes] matches. The zero value changes nothing.
type Route struct {
	// Exempt lets the requests pass: they need no key, cost nothing and get no header fields.
	Exempt bool

	// Throttler decides. Throttlers may share a Backend; their policies need different names unless they are to share counts.
	// It is never closed. If nil, that of New decides.
	Throttler *throttler.Throttler

	// Key and Also replace those of the Config, for example the address alone before a login. If Key is nil, those of the Config
	// apply, and Also must be empty.
	Key  KeyFunc
	Also []KeyFunc

	// Cost is the cost of each request. Zero: that of Config.Cost.
	Cost int64
}

func (r Route) validate(bad *fielderrors.List) {
	if r.Exempt && (r.Throttler != nil || r.Key != nil || len(r.Also) > 0 || r.Cost != 0) {
		bad.Add("Exempt", "true", "excludes all other fields")
	}
	if r.Key == nil && len(r.Also) > 0 {
		bad.Add("Also", len(r.Also), "is for a Route with a Key")
	}
	checkKeys(bad, r.Also)
	if r.Cost < 0 || r.Cost > limit.MaxCount {
		bad.Add("Cost", r.Cost, "must be from 0 to "+strconv.FormatInt(limit.MaxCount, 10))
	}
}

// route is a Route with the defaults of the Config.
type route struct {
	throttle *throttler.Throttler
	keys     []KeyFunc
	cost     int64 // 0: of Config.Cost
	exempt   bool
}

// routes finds the Route of a request. A ServeMux matches, so a request has the same route here as in one.
type routes struct {
	all     route // of requests that no pattern matches
	mux     *http.ServeMux
	matched map[string]*route // by pattern
}

func newRoutes(t *throttler.Throttler, cfg *Config) (routes, error) {
	rs := routes{all: route{throttle: t, keys: append([]KeyFunc{cfg.Key}, cfg.Also...)}}
	if len(cfg.Routes) == 0 {
		return rs, nil
	}
	var errs []error
	rs.mux, rs.matched = http.NewServeMux(), make(map[string]*route, len(cfg.Routes))
	for _, pattern := range slices.Sorted(maps.Keys(cfg.Routes)) {
		r := cfg.Routes[pattern]
		bad := fielderrors.List{Prefix: "Routes[" + strconv.Quote(pattern) + "]."}
		r.validate(&bad)
		errs = append(errs, bad.Err())
		if !register(rs.mux, pattern) {
			errs = append(errs, &limit.Error{
				Field: "Routes", Value: strconv.Quote(pattern), Bound: "must be a pattern of http.ServeMux that conflicts with no other",
			})
		}
		own := rs.all
		own.exempt, own.cost = r.Exempt, r.Cost
		if r.Throttler != nil {
			own.throttle = r.Throttler
		}
		if r.Key != nil {
			own.keys = append([]KeyFunc{r.Key}, r.Also...)
		}
		rs.matched[pattern] = &own
	}
	return rs, errors.Join(errs...)
}

// register reports whether a ServeMux accepts a pattern. It panics at others.
func register(mux *http.ServeMux, pattern string) (ok bool) {
	defer func() { ok = recover() == nil }()
	mux.Handle(pattern, http.NotFoundHandler())
	return true
}

// route returns the route of a request.
func (rs *routes) route(r *http.Request) *route {
	if rs.mux != nil {
		_, pattern := rs.mux.Handler(r)
		if own, ok := rs.matched[pattern]; ok {
			return own
		}
	}
	return &rs.all
}
