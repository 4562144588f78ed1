//go:build unix

package redisbackend_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// TestRedisHostileValues: whatever stands in a key's place costs the server little, is answered Corrupt, and stays.
func TestRedisHostileValues(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	client := server.Client()
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
	future := time.Now().Add(time.Hour).Truncate(time.Hour).UnixMilli()
	digits := strings.Repeat("1", 1200)
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "f%dms:%d,1;", 1001+2*i, future)
		}
		return b.String()
	}
	policies := map[string]*limit.Policy{
		"fixed":   {Name: "p", Limits: []limit.Limit{limit.PerHour(9)}},
		"several": {Name: "p", Limits: []limit.Limit{limit.PerHour(9), limit.PerDay(9)}},
		"sliding": {Name: "p", Limits: []limit.Limit{limit.Sliding(9, time.Hour, time.Minute)}},
		"bucket":  {Name: "p", Limits: []limit.Limit{limit.TokenBucket(9, time.Hour, 9)}},
	}
	usec := regexp.MustCompile(`cmdstat_(?:eval|evalsha):calls=\d+,usec=(\d+)`)
	for name, value := range map[string]string{
		"a count of 1,200 digits, then more": fmt.Sprintf("f1h:%d,%sx;", future, digits),
		"a count of 1,200 digits":            fmt.Sprintf("f1h:%d,%s,;", future, digits),
		"a refund of 1,200 digits":           fmt.Sprintf("f1h:%d,5-%s,;", future, digits),
		"three of them":                      fmt.Sprintf("f1h:%d,%s-%s-%s.;", future, digits, digits, digits),
		"a reset of 1,200 digits":            fmt.Sprintf("f1h:%s,1;", digits),
		"a sum of 1,200 digits":              fmt.Sprintf("s1h~1m:%d,%s,1;", future, digits),
		"a sub-bucket of 1,200 digits":       fmt.Sprintf("s1h~1m:%d,1,%sx;", future, digits),
		"a peak of 1,200 digits":             fmt.Sprintf("b1h:%s,1,1;", digits),
		"a credit of 1,200 digits":           fmt.Sprintf("b1h:%d,9,9,%s,%sx;", future*1000, digits, digits),
		"a megabyte of one digit":            fmt.Sprintf("f1h:%d,%sx;", future, strings.Repeat("1", 1<<20)),
		"a megabyte of one refund":           fmt.Sprintf("f1h:%d,5-%sx;", future, strings.Repeat("1", 1<<20)),
		"a megabyte without a colon":         strings.Repeat("x", 1<<20),
		"a megabyte of identity":             "s" + strings.Repeat("1", 1<<20) + ":1,1;",
		"a megabyte of sub-buckets":          fmt.Sprintf("s1h~1m:%d,0%s;", future, strings.Repeat(",0", 1<<19)),
		"ten thousand entries":               many(10_000),
		"what is no number":                  fmt.Sprintf("f1h:%d,1e5;", future),
		"an unknown entry":                   fmt.Sprintf("x1h:%d,1;", future),
	} {
		t.Run(name, func(t *testing.T) {
			do(t, client, "SET", backendtesting.Stored(backendtesting.Secret), value)
			do(t, client, "CONFIG", "RESETSTAT")
			calls := 0
			for kind, p := range policies {
				req := backendtesting.Request(backendtesting.Secret)
				req.Policy = p
				_, err := b.Take(context.Background(), req)
				backendtesting.WantError(t, err, backend.Corrupt, false)
				with := req
				with.Floor = &state.State{}
				with.Floor.Take(p, state.At{Micros: time.Now().UnixMicro()}, 1)
				_, err = b.Take(context.Background(), with)
				backendtesting.WantError(t, err, backend.Corrupt, false)
				_, err = b.Charge(context.Background(), with, state.Mark{})
				backendtesting.WantError(t, err, backend.Corrupt, false)
				var s state.State
				v := s.Take(p, state.At{Micros: time.Now().UnixMicro()}, 1)
				backendtesting.WantError(t, b.Refund(context.Background(), req, v.Receipt(), 1), backend.Corrupt, false)
				backendtesting.WantError(t, b.Reset(context.Background(), req), backend.Corrupt, false)
				_, err = b.Seal(context.Background(), moving(req, state.Ask))
				backendtesting.WantError(t, err, backend.Corrupt, false)
				_, err = b.Load(context.Background(), req)
				backendtesting.WantError(t, err, backend.Corrupt, false)
				if calls += 7; client.Get(t.Context(), backendtesting.Stored(backendtesting.Secret)).Val() != value {
					t.Fatalf("under a policy of %s, what is stored has changed", kind)
				}
			}
			spent := int64(0)
			for _, m := range usec.FindAllStringSubmatch(client.Info(t.Context(), "commandstats").Val(), -1) {
				n, _ := strconv.ParseInt(m[1], 10, 64)
				spent += n
			}
			if t.Logf("%d calls cost the server %dus", calls, spent); spent > 5_000_000 { // minutes, if a pattern backtracks
				t.Errorf("%d calls cost the server %dus", calls, spent)
			}
		})
	}
}
