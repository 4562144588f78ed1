package envoylimit

import (
	"slices"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice/contrib/envoylimit/rules"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// slot is what becomes of one descriptor of a request.
type slot struct {
	match  rules.Match // without a rule: no limit applies
	kind   kind
	hits   int64 // what it costs, or gives back
	alone  bool  // charged by itself: it is not of those that are charged all or none
	shadow bool  // it never denies

	known    bool // decision is
	decision throttler.Decision
	charged  bool
	over     bool // it has less left than the request costs
}

// kind is what a descriptor asks for.
type kind uint8

const (
	none      kind = iota // no limit applies
	unlimited             // a rule without a limit
	charge
	check   // hits_addend 0: is there anything left
	giving  // negative hits
	blocked // a limit of 0
	moot    // negative hits of a limit of 0, which holds none
)

// call is one request.
type call struct {
	service *Service
	req     *pb.RateLimitRequest
	slots   []slot
	few     [4]slot
	denied  bool // by a slot that is enforced
}

// check refuses what no configuration can answer.
func (s *Service) check(req *pb.RateLimitRequest) error {
	switch n := len(req.GetDescriptors()); {
	case req.GetDomain() == "":
		return status.Error(codes.InvalidArgument, "rate limit domain must not be empty")
	case n == 0:
		return status.Error(codes.InvalidArgument, "rate limit descriptor list must not be empty")
	case n > s.cfg.MaxDescriptors:
		return status.Errorf(codes.InvalidArgument, "%d descriptors are more than %d", n, s.cfg.MaxDescriptors)
	}
	return nil
}

// match finds the rule of each descriptor.
func (c *call) match(d *rules.Domain) error {
	descriptors := c.req.GetDescriptors()
	if c.slots = c.few[:min(len(descriptors), len(c.few))]; len(descriptors) > len(c.few) {
		c.slots = make([]slot, len(descriptors))
	}
	var replaced []string
	for i, descriptor := range descriptors {
		sl := &c.slots[i]
		if o := descriptor.GetLimit(); o != nil {
			var err error
			if sl.match, err = d.Override(descriptor.GetEntries(), o); err != nil {
				return status.Error(codes.InvalidArgument, err.Error())
			}
		} else {
			sl.match = d.Match(descriptor.GetEntries())
		}
		if r := sl.match.Rule; r != nil {
			replaced = append(replaced, r.Replaces...)
			c.fill(sl, descriptor)
		}
	}
	if len(replaced) > 0 {
		for i := range c.slots {
			if r := c.slots[i].match.Rule; r != nil && r.Limit.Name != "" && slices.Contains(replaced, r.Limit.Name) {
				c.slots[i] = slot{}
			}
		}
	}
	return nil
}

// fill says what a descriptor asks for under its rule.
func (c *call) fill(sl *slot, descriptor *ratelimit.RateLimitDescriptor) {
	r := sl.match.Rule
	hits := uint64(max(1, c.req.GetHitsAddend())) // an absent one is 0, too
	if own := descriptor.GetHitsAddend(); own != nil {
		hits = own.GetValue()
	}
	sl.hits = int64(min(hits, uint64(limit.MaxCount)))
	cfg := &c.service.cfg
	sl.shadow = r.Shadow || r.Quota || cfg.Quota || cfg.Shadow
	sl.alone = sl.shadow || r.Overrun
	switch {
	case r.Unlimited:
		sl.kind = unlimited
	case descriptor.GetIsNegativeHits():
		sl.kind = giving
	case r.Policy == nil:
		sl.kind = blocked
	case hits == 0:
		sl.kind = check
	default:
		sl.kind = charge
	}
	if sl.kind == giving && r.Policy == nil {
		sl.kind = moot
	}
}
