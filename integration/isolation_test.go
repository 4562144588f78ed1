//go:build unix

package integration_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
)

// isolated is how long each half of a row about isolation runs: without the trouble, and with it.
const isolated = time.Second

// crowd has callers make calls for a while. It returns how many had a verdict and how many failed.
func crowd(t *testing.T, callers int, call func(ctx context.Context, caller, i int) error) (decided, failed int64) {
	t.Helper()
	var ok, bad atomic.Int64
	var last atomic.Value
	var all sync.WaitGroup
	stop := time.Now().Add(isolated)
	for c := range callers {
		all.Go(func() {
			for i := 0; time.Now().Before(stop); i++ {
				if err := call(t.Context(), c, i); err != nil {
					bad.Add(1)
					last.Store(err.Error())
				} else {
					ok.Add(1)
				}
			}
		})
	}
	all.Wait()
	if bad.Load() > 0 {
		t.Logf("%d of %d calls fail: %v", bad.Load(), ok.Load()+bad.Load(), last.Load())
	}
	return ok.Load(), bad.Load()
}

func openRedis(t *testing.T, opts *redis.Options) *redisbackend.Redis {
	t.Helper()
	b, err := redisbackend.Open(opts, patient)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// TestShadowWithoutRights: a login may count under one policy. A Dual moves keys there, and the shadows of those that haven't moved
// count under another name with equal limits, which the server refuses. Decisions are unaffected.
func TestShadowWithoutRights(t *testing.T) {
	t.Parallel()
	old, moved := startRedis(t), startRedis(t)
	command(t, moved, "ACL", "SETUSER", "app", "on", ">pass", "~sl:api:*", "+@all")
	policy := one(limit.PerDay(1_000_000_000))
	run := func(shadow bool) (decided, failed int64, stats dual.ShadowStats) {
		d, err := dual.New(dual.Config{
			Old:    openRedis(t, &redis.Options{Addr: old.addr}),
			New:    openRedis(t, &redis.Options{Addr: moved.addr, Username: "app", Password: "pass"}),
			Decide: func(key string) (bool, uint64) { return key[0] == 'n', 0 },
			Shadow: func(key string) bool { return shadow && key[0] == 'o' },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		decided, failed = crowd(t, 16, func(ctx context.Context, caller, i int) error {
			_, err := d.Take(ctx, backend.Request{Key: []string{"n", "o"}[caller%2] + strconv.Itoa(i%100), Policy: &policy, Cost: 1})
			return err
		})
		return decided, failed, d.Stats().Shadow
	}
	before, failedBefore, _ := run(false)
	beside, failed, shadows := run(true)
	if shadows.Failed == 0 {
		t.Error("no shadow was refused: the test shows nothing")
	}
	if failedBefore+failed > 0 || beside < before/100 { // a machine under load has other work, too
		t.Errorf("%d decisions and %d errors beside a shadow that is refused, %d and %d without it", beside, failed, before, failedBefore)
	}
	report(t, "shadow-without-rights", result{sluice: figures{over: unmeasured, note: fmt.Sprintf(
		"%d decisions and %d errors without the shadow, %d and %d beside %d shadow calls that were refused",
		before, failedBefore, beside, failed, shadows.Failed)}})
}

// TestDeniedWithoutMemory: a server that has no memory left still denies the keys of which nothing is left to every caller of
// others meanwhile.
func TestDeniedWithoutMemory(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	b := openRedis(t, &redis.Options{Addr: s.addr})
	policy := one(limit.PerDay(1))
	take := func(ctx context.Context, key string) (bool, error) {
		r, err := b.Take(ctx, backend.Request{Key: key, Policy: &policy, Cost: 1})
		return r.Allowed, err
	}
	if ok, err := take(t.Context(), "exhausted"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	command(t, s, "CONFIG", "SET", "maxmemory", "1")
	var over, refused atomic.Int64
	run := func(others int) (denied, failed int64) {
		stop := make(chan struct{})
		var running sync.WaitGroup
		for range others {
			running.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					switch ok, err := take(t.Context(), "new"+strconv.Itoa(i)); {
					case ok:
						over.Add(1)
					case kind(err) == backend.Unavailable:
						refused.Add(1)
					default:
						t.Errorf("a key that there is no memory for: %v", err)
					}
				}
			})
		}
		denied, failed = crowd(t, 8, func(ctx context.Context, _, _ int) error {
			ok, err := take(ctx, "exhausted")
			if ok {
				over.Add(1)
			}
			return err
		})
		close(stop)
		running.Wait()
		return denied, failed
	}
	before, failedBefore := run(0)
	beside, failed := run(8)
	if refused.Load() == 0 {
		t.Error("nothing was refused for want of memory: the test shows nothing")
	}
	if failedBefore+failed > 0 || beside < before/100 {
		t.Errorf("%d denials and %d errors beside keys that there is no memory for, %d and %d without them", beside, failed, before, failedBefore)
	}
	report(t, "denied-without-memory", result{sluice: figures{over: over.Load(), note: fmt.Sprintf(
		"%d denials and %d errors of a key that is used up, %d and %d beside 8 callers of other keys, who were refused %d times",
		before, failedBefore, beside, failed, refused.Load())}})
}

// TestClientsReset: an HTTP/2 client that resets its streams all the time costs a few connections to Redis, and
// others are answered as before.
func TestClientsReset(t *testing.T) {
	t.Parallel()
	var notes string
	for _, secure := range []bool{false, true} {
		s := ownProcess(testserver.Redis(t))
		opts := &redis.Options{Addr: s.addr}
		if secure {
			opts.Addr, opts.TLSConfig = enableTLS(t, s)
		}
		limits, err := throttler.New(throttler.Config{
			Backend: openRedis(t, opts), Policy: one(limit.PerDay(1_000_000_000)), Failure: throttler.FailError,
		})
		if err != nil {
			t.Fatal(err)
		}
		middleware, err := httplimit.New(limits, httplimit.Config{Key: httplimit.ClientAddr()})
		if err != nil {
			t.Fatal(err)
		}
		site := httptest.NewUnstartedServer(middleware.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })))
		site.EnableHTTP2 = true
		site.StartTLS()
		get := func(ctx context.Context, client *http.Client) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, site.URL, nil)
			if err != nil {
				return err
			}
			response, err := client.Do(req)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			if response.StatusCode != http.StatusNoContent || response.ProtoMajor != 2 {
				return errors.New(response.Proto + " " + response.Status)
			}
			return nil
		}
		newClient := func() *http.Client {
			return &http.Client{Transport: &http.Transport{
				TLSClientConfig: site.Client().Transport.(*http.Transport).TLSClientConfig.Clone(), ForceAttemptHTTP2: true,
			}}
		}
		rude, polite := newClient(), newClient()
		connections := func() int64 {
			n, _ := strconv.ParseInt(info(t, s, "stats")["total_connections_received"], 10, 64)
			return n
		}
		before, failedBefore := crowd(t, 1, func(ctx context.Context, _, _ int) error { return get(ctx, polite) })
		opened, begin := connections(), time.Now()
		stop := make(chan struct{})
		var resets atomic.Int64
		var running sync.WaitGroup
		for range 2 {
			running.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(100+rand.IntN(400))*time.Microsecond)
					if get(ctx, rude) != nil {
						resets.Add(1)
					}
					cancel()
				}
			})
		}
		beside, failed := crowd(t, 1, func(ctx context.Context, _, _ int) error { return get(ctx, polite) })
		close(stop)
		running.Wait()
		took := time.Since(begin)
		opened = connections() - opened
		rude.CloseIdleConnections()
		polite.CloseIdleConnections()
		site.Close()
		_ = limits.Close()
		if resets.Load() < 20 {
			t.Errorf("only %d streams were reset: the test shows nothing", resets.Load())
		}
		if most := int64(20 + 4*took/time.Second); opened > most {
			t.Errorf("TLS %t: %d resets in %s cost %d connections, want %d at most", secure, resets.Load(), took, opened, most)
		}
		if failedBefore+failed > 0 {
			t.Errorf("TLS %t: %d requests of another client fail, %d without resets", secure, failed, failedBefore)
		}
		if notes != "" {
			notes += "; with TLS to Redis "
		}
		notes += fmt.Sprintf("%d connections opened during %d resets; another client: %d answers and %d errors without them, %d and %d with them",
			opened, resets.Load(), before, failedBefore, beside, failed)
	}
	report(t, "clients-reset", result{sluice: figures{over: unmeasured, note: notes}})
}

// enableTLS has a server listen for TLS, too, and returns where, and how to trust it.
func enableTLS(t *testing.T, s *server) (addr string, trust *tls.Config) {
	t.Helper()
	pair := httptest.NewTLSServer(nil) // for its certificate
	defer pair.Close()
	key, err := x509.MarshalPKCS8PrivateKey(pair.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, block := range map[string]*pem.Block{
		"key": {Type: "PRIVATE KEY", Bytes: key}, "cert": {Type: "CERTIFICATE", Bytes: pair.Certificate().Raw},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	command(t, s, "CONFIG", "SET", "tls-cert-file", filepath.Join(dir, "cert"), "tls-key-file", filepath.Join(dir, "key"),
		"tls-ca-cert-file", filepath.Join(dir, "cert"), "tls-auth-clients", "no")
	await(t, "a port for TLS", func() bool { // between the choice of a port and its use another process may take it
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr = listener.Addr().String()
		_ = listener.Close()
		_, port, _ := net.SplitHostPort(addr)
		err = s.client.Do(t.Context(), "CONFIG", "SET", "tls-port", port).Err()
		return err == nil
	})
	trust = pair.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	trust.ServerName = "example.com"
	return addr, trust
}
