package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/finding"
)

// serverReport is what a server has replied.
type serverReport struct {
	cluster.Member
	err         error // why there is no reply
	info        map[string]string
	saves       bool          // RDB snapshots; only if known
	known       bool          // whether CONFIG GET is permitted
	offset      time.Duration // its clock against this host's
	rtt         time.Duration // the offset is exact to half of it
	permissions permissions
	refusal     error // of all writes, now
}

// examine asks a server for --timeout at most.
func examine(ctx context.Context, m cluster.Member, timeout time.Duration) *serverReport {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	e := &serverReport{Member: m}
	if m.Role == cluster.RoleSentinel {
		e.err = m.Reach(ctx)
		return e
	}
	client := redis.NewClient(&m.Options)
	defer client.Close()
	text, err := client.Info(ctx).Result()
	if err != nil {
		e.err = err
		return e
	}
	e.info = parseInfo(text)
	if save, err := client.ConfigGet(ctx, "save").Result(); err == nil { // often not permitted
		e.known, e.saves = true, save["save"] != ""
	}
	if e.offset, e.rtt, e.err = clockOf(ctx, client); e.err != nil {
		return e
	}
	e.permissions = readPermissions(ctx, client, m.Prefix, e.requiredCommands())
	if e.mayWrite() {
		e.refusal = writeRefusal(ctx, client, m.Prefix, e.info["cluster_enabled"] == "1")
	}
	if ctx.Err() != nil {
		e.err = fmt.Errorf("it is slow: no answer within %v", timeout)
	}
	return e
}

// clockOf compares a server's clock with this host's. The quickest of several readings is the most exact.
func clockOf(ctx context.Context, client *redis.Client) (offset, rtt time.Duration, err error) {
	rtt = time.Hour
	for range 3 {
		asked := time.Now()
		there, err := client.Time(ctx).Result()
		if err != nil {
			return 0, 0, err
		}
		if took := time.Since(asked); took < rtt {
			rtt, offset = took, there.Sub(asked.Add(took/2))
		}
	}
	return offset, rtt, nil
}

func (e *serverReport) replica() bool { return e.info["role"] == "slave" }

// age is for how long a replica has not heard of its primary, 0 for a primary.
func (e *serverReport) age() time.Duration {
	if !e.replica() {
		return 0
	}
	seconds := infoInt(e.info, "master_last_io_seconds_ago")
	if seconds < 0 {
		seconds = infoInt(e.info, "master_link_down_since_seconds")
	}
	return time.Duration(max(seconds, 0)) * time.Second
}

// checkReach is for a server that gave no usable reply.
func (e *serverReport) checkReach() (f finding.List) {
	var reply redis.Error
	switch {
	case errors.As(e.err, &reply) && redis.HasErrorPrefix(e.err, "LOADING"):
		f.Add(finding.Critical, "reach", "it is loading its data: no request is decided until then", "Wait.")
	case errors.As(e.err, &reply) && redis.HasErrorPrefix(e.err, "NOPERM"):
		f.Add(finding.Critical, "acl", "refuses what Sluice needs: "+e.err.Error(), "Grant the user +info +time.")
	case errors.As(e.err, &reply):
		f.AddDetail(finding.Critical, "reach", "refuses", e.err.Error(), "Look at the credentials.")
	case e.Role == cluster.RoleReplica || e.Role == cluster.RoleSentinel:
		f.AddDetail(finding.Warning, "reach", "can't be reached", e.err.Error(), "See whether it runs.")
	default:
		f.AddDetail(finding.Critical, "reach", "can't be reached", e.err.Error(),
			"See whether it runs. Its keys have no verdict meanwhile; the applications' failure policy decides.")
	}
	return f
}

// parseInfo reads what INFO answers.
func parseInfo(text string) map[string]string {
	fields := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// primaryAddr is the address of the primary that a replica says it follows.
func primaryAddr(info map[string]string) string {
	return net.JoinHostPort(info["master_host"], info["master_port"])
}

func infoInt(info map[string]string, name string) int64 {
	n, _ := strconv.ParseInt(info[name], 10, 64)
	return n
}
