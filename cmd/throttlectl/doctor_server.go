package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// serverReport is what a server has said.
type serverReport struct {
	member
	err         error // why it said nothing
	info        map[string]string
	saves       bool          // whether it saves now and then; only if known
	known       bool          // whether it may be asked for its configuration
	offset      time.Duration // its clock against this host's
	rtt         time.Duration // what the offset may be off by, twice
	permissions permissions
}

// examine asks a server for --timeout at most.
func examine(ctx context.Context, m member, timeout time.Duration) *serverReport {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	e := &serverReport{member: m}
	if m.Role == roleSentinel {
		e.err = m.reach(ctx)
		return e
	}
	client := redis.NewClient(&m.options)
	defer client.Close()
	text, err := client.Info(ctx).Result()
	if err != nil {
		e.err = err
		return e
	}
	e.info = parseInfo(text)
	if save, err := client.ConfigGet(ctx, "save").Result(); err == nil { // many users may not ask
		e.known, e.saves = true, save["save"] != ""
	}
	if e.offset, e.rtt, e.err = clockOf(ctx, client); e.err != nil {
		return e
	}
	e.permissions = readPermissions(ctx, client, m.prefix, e.requiredCommands())
	if ctx.Err() != nil {
		e.err = fmt.Errorf("it is slow: no answer within %v", timeout)
	}
	return e
}

// clockOf compares a server's clock with this host's. Of several readings the quickest is the most exact.
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

// age is since when a replica has not heard of its primary; 0 of others.
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

// checkReach tells of a server that doesn't answer as it should.
func (e *serverReport) checkReach() (f findings) {
	var reply redis.Error
	switch {
	case errors.As(e.err, &reply) && redis.HasErrorPrefix(e.err, "LOADING"):
		f.add(critical, "reach", "it is loading its data: no request is decided until then", "Wait.")
	case errors.As(e.err, &reply) && redis.HasErrorPrefix(e.err, "NOPERM"):
		f.add(critical, "acl", "refuses what Sluice needs: "+e.err.Error(), "Grant the user +info +time.")
	case errors.As(e.err, &reply):
		f.add(critical, "reach", "refuses: "+e.err.Error(), "Look at the credentials.")
	case e.Role == roleReplica || e.Role == roleSentinel:
		f.add(warning, "reach", "can't be reached: "+e.err.Error(), "See whether it runs.")
	default:
		f.add(critical, "reach", "can't be reached: "+e.err.Error(),
			"See whether it runs. Its keys have no verdict meanwhile; the applications' failure policy decides.")
	}
	return f
}
