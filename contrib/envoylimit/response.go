package envoylimit

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-go/sluice/contrib/envoylimit/rules"
	"github.com/sluice-go/sluice/internal/limitview"
	"github.com/sluice-go/sluice/limit"
)

// response is the answer, once all slots are decided. It counts the request.
func (c *call) response() *pb.RateLimitResponse {
	s := c.service
	res := &pb.RateLimitResponse{
		OverallCode: pb.RateLimitResponse_OK, Statuses: make([]*pb.RateLimitResponse_DescriptorStatus, len(c.slots)),
	}
	var nearest *pb.RateLimitResponse_DescriptorStatus
	var above []int // descriptors above a quota
	over, least := false, uint32(math.MaxUint32)
	for i := range c.slots {
		sl := &c.slots[i]
		status := sl.status()
		res.Statuses[i] = status
		if r := sl.match.Rule; r != nil {
			if sl.over {
				switch {
				case r.Shadow:
					status.Code = pb.RateLimitResponse_OK
				case r.Quota || s.cfg.Quota:
					status.Code = pb.RateLimitResponse_OK
					above = append(above, i)
				default:
					over, least, nearest = true, 0, status
				}
			}
			s.stats.count(sl, s.cfg.NearLimit)
		}
		if status.CurrentLimit != nil && (status.LimitRemaining < least || nearest == nil) && !over {
			least, nearest = status.LimitRemaining, status
		}
	}
	switch {
	case over && s.cfg.Shadow:
		s.stats.shadowed.Add(1)
	case over:
		res.OverallCode = pb.RateLimitResponse_OVER_LIMIT
	}
	if nearest != nil {
		res.ResponseHeadersToAdd = s.cfg.Headers.of(nearest, c.slots)
	}
	if s.cfg.Metadata {
		res.DynamicMetadata = c.metadata(above)
	}
	return res
}

// status is what one descriptor is answered.
func (sl *slot) status() *pb.RateLimitResponse_DescriptorStatus {
	status := &pb.RateLimitResponse_DescriptorStatus{Code: pb.RateLimitResponse_OK}
	switch {
	case sl.kind == none, sl.kind != unlimited && sl.kind != blocked && sl.kind != moot && !sl.known && !sl.over: // nothing is known of it
		return status
	case sl.kind == unlimited:
		status.LimitRemaining = math.MaxUint32
		return status
	case sl.over:
		status.Code = pb.RateLimitResponse_OVER_LIMIT
	}
	l := sl.match.Rule.Limit
	status.CurrentLimit = l
	window := rules.Window(l.GetUnit())
	reset := window - time.Duration(time.Now().UnixNano())%window // of a limit of 0, which nothing counts
	if sl.known {
		d := &sl.decision
		status.LimitRemaining = uint32(min(max(d.Remaining, 0), math.MaxUint32))
		switch {
		case d.ResetAt.IsZero() && d.RetryAfter == limit.Never: // a deny list
			return status
		case d.ResetAt.IsZero(): // the failure policy
			reset = d.RetryAfter
		default:
			reset = sl.untilMore()
		}
	}
	status.DurationUntilReset = &durationpb.Duration{Seconds: max(0, limitview.RoundUp(reset, time.Second))}
	return status
}

// untilMore is the time until the slot's limit has more quota.
func (sl *slot) untilMore() time.Duration {
	d := &sl.decision
	retry := d.RetryAfter
	if retry == limit.Never {
		retry = 0
	}
	return limitview.UntilMore(&limit.Status{Limit: d.Limit, Remaining: d.Remaining, ResetAt: d.ResetAt, RetryAfter: retry}, d.At)
}

// of are the headers: about the nearest limit, and in the draft's format about all.
func (h Headers) of(nearest *pb.RateLimitResponse_DescriptorStatus, slots []slot) (headers []*core.HeaderValue) {
	add := func(name, value string) {
		if name != "" {
			headers = append(headers, &core.HeaderValue{Key: name, Value: value})
		}
	}
	add(h.Limit, strconv.FormatUint(uint64(nearest.GetCurrentLimit().GetRequestsPerUnit()), 10))
	add(h.Remaining, strconv.FormatUint(uint64(nearest.GetLimitRemaining()), 10))
	add(h.Reset, strconv.FormatInt(nearest.GetDurationUntilReset().GetSeconds(), 10))
	if h.IETF {
		if policy, current := draft(slots); policy != "" {
			add("RateLimit-Policy", policy)
			add("RateLimit", current)
		}
	}
	return headers
}

// draft are the fields of draft-ietf-httpapi-ratelimit-headers: of limits of one name the one with the least left.
func draft(slots []slot) (policies, current string) {
	names := make(map[string]int)
	var shown []*slot
	for i := range slots {
		sl := &slots[i]
		if !sl.known || sl.decision.Limit.Max == 0 || sl.decision.ResetAt.IsZero() {
			continue
		}
		name := limitview.Name(&sl.decision.Limit)
		if at, has := names[name]; !has {
			names[name] = len(shown)
			shown = append(shown, sl)
		} else if sl.decision.Remaining < shown[at].decision.Remaining {
			shown[at] = sl
		}
	}
	var p, l strings.Builder
	for i, sl := range shown {
		if i > 0 {
			p.WriteString(", ")
			l.WriteString(", ")
		}
		d := &sl.decision
		name := limitview.Name(&d.Limit)
		fmt.Fprintf(&p, `"%s";q=%d;w=%d`, name, d.Limit.Quota(), limitview.RoundUp(limitview.Window(&d.Limit), time.Second))
		fmt.Fprintf(&l, `"%s";r=%d;t=%d`, name, d.Remaining, max(0, limitview.RoundUp(sl.untilMore(), time.Second)))
	}
	return p.String(), l.String()
}

// metadata are the fields that the reference has.
func (c *call) metadata(above []int) *structpb.Struct {
	var descriptors []*structpb.Value
	for _, d := range c.req.GetDescriptors() {
		descriptors = append(descriptors, structpb.NewStructValue(descriptorStruct(d)))
	}
	quota := false
	for i := range c.slots {
		r := c.slots[i].match.Rule
		quota = quota || r != nil && r.Quota
	}
	fields := map[string]*structpb.Value{
		"domain":           structpb.NewStringValue(c.req.GetDomain()),
		"descriptors":      structpb.NewListValue(&structpb.ListValue{Values: descriptors}),
		"quotaModeEnabled": structpb.NewBoolValue(quota),
	}
	if hits := c.req.GetHitsAddend(); hits != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(hits))
	}
	if len(above) > 0 {
		var values []*structpb.Value
		for _, i := range above {
			values = append(values, structpb.NewNumberValue(float64(i)))
		}
		fields["quotaModeViolations"] = structpb.NewListValue(&structpb.ListValue{Values: values})
	}
	return &structpb.Struct{Fields: fields}
}

func descriptorStruct(d *ratelimit.RateLimitDescriptor) *structpb.Struct {
	var entries []*structpb.Value
	for _, e := range d.GetEntries() {
		entries = append(entries, structpb.NewStringValue(e.GetKey()+"="+e.GetValue()))
	}
	fields := map[string]*structpb.Value{"entries": structpb.NewListValue(&structpb.ListValue{Values: entries})}
	if l := d.GetLimit(); l != nil {
		fields["limit"] = structpb.NewStringValue(l.String())
	}
	if hits := d.GetHitsAddend(); hits != nil {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(hits.GetValue()))
	}
	return &structpb.Struct{Fields: fields}
}
