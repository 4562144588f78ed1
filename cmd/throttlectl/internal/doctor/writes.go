package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/finding"
)

// A node of a Redis Cluster redirects all names but those of its slots, so that several are tried, some in each round trip.
const (
	writesAtOnce = 32
	writeTrips   = 16
)

// writeRefusal returns the error with which a server refuses all writes at the moment, nil if it takes them or doesn't say. It
// sends SET with XX of a name that applications don't use, which changes nothing where it doesn't exist.
func writeRefusal(ctx context.Context, client *redis.Client, prefix string, clustered bool) error {
	if !clustered {
		return refusal(client.Do(ctx, "set", prefix+"doctor", "", "xx").Err())
	}
	for trip := range writeTrips {
		pipe := client.Pipeline()
		for i := range writesAtOnce {
			pipe.Do(ctx, "set", fmt.Sprintf("%sdoctor{%d}", prefix, trip*writesAtOnce+i), "", "xx")
		}
		replies, _ := pipe.Exec(ctx)
		for _, reply := range replies {
			if !redis.HasErrorPrefix(reply.Err(), "MOVED") && !redis.HasErrorPrefix(reply.Err(), "ASK") {
				return refusal(reply.Err())
			}
		}
	}
	return nil
}

// refusal leaves out errors that aren't about writes: rights are a check of their own.
func refusal(err error) error {
	var reply redis.Error
	if !errors.As(err, &reply) || errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "NOPERM") {
		return nil
	}
	return err
}

// mayWrite reports whether writes of applications go to a server.
func (e *serverReport) mayWrite() bool {
	return e.Role == cluster.RolePrimary || e.Role == "" && !e.replica()
}

// checkWrites is about a server that refuses all writes now: every request for its keys is left without a verdict.
func (e *serverReport) checkWrites() (f finding.List) {
	if e.refusal == nil {
		return nil
	}
	code, text, _ := strings.Cut(e.refusal.Error(), " ")
	fix, known := map[string]string{
		"READONLY":    "It is a replica: publish a topology that names the new primary; sentinels would tell by themselves.",
		"MISCONF":     "It can't save: look at its log and its disk. CONFIG SET stop-writes-on-bgsave-error no has it take writes meanwhile.",
		"NOREPLICAS":  "Bring its replicas back, or lower min-replicas-to-write.",
		"OOM":         "It is full: raise maxmemory, add a group, or shorten windows.",
		"CLUSTERDOWN": "Bring the missing shards back (redis-cli --cluster check).",
		"MASTERDOWN":  "Bring its primary back.",
	}[code]
	if !known {
		fix = "Look at its log."
	}
	f.AddDetail(finding.Critical, finding.WritesCheck, "REFUSES ALL WRITES NOW ("+code+"): no request for its keys gets a verdict", text, fix)
	return f
}
