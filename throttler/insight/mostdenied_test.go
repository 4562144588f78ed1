package insight_test

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
)

// Who is denied most? An operator who knows a key finds it by its hash.
func ExampleRecorder_TopDenied() {
	recorder, err := insight.New(insight.Config{WatchedKeys: 1000, HashKey: []byte("a secret of all processes")})
	if err != nil {
		log.Fatal(err)
	}
	t, err := throttler.New(throttler.Config{
		Policy:   limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(1)}},
		Observer: recorder,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	for _, key := range []string{"user:1", "user:2", "user:2", "user:3", "user:3", "user:3"} {
		if _, err := t.Allow(context.Background(), key); err != nil {
			log.Fatal(err)
		}
	}
	for _, k := range recorder.TopDenied(10) {
		fmt.Println(k.Key, k.Denied, k.Key == recorder.KeyHash("user:3"))
	}
	for _, k := range recorder.TopDeniedInClear(1) {
		fmt.Println(k.Key, k.Denied)
	}
	// Output:
	// 378d8e31f1b284150a91673442250d4b 2 true
	// b3602b66fbc5b3bd41b139c6e2d73050 1 false
	// user:3 2
}

// denying is a Throttler whose backend denies every request, and its recorder.
func denying(t testing.TB, cfg insight.Config) (*throttler.Throttler, *insight.Recorder) {
	recorder := newRecorder(t, cfg)
	return throttlertesting.New(t, throttler.Config{
		Backend: denier{throttlertesting.NewMemory(t, nil)}, Policy: throttlertesting.One(limit.PerHour(1)), Observer: recorder,
	}), recorder
}

type denier struct{ *memory.Memory }

func (denier) Take(context.Context, backend.Request) (backend.Result, error) {
	return backend.Result{}, nil
}

// Space-Saving's promise, on keys of which few are denied often: who has more than his share is watched, and no count is
// too low, nor too high by more than it says.
func TestTopDenied(t *testing.T) {
	t.Parallel()
	for _, watched := range []int{1, 1000, 3000} {
		th, recorder := denying(t, insight.Config{WatchedKeys: watched, HalfLife: time.Hour})
		watched = max(watched, 1000)
		random := rand.New(rand.NewPCG(1, uint64(watched)))
		zipf := rand.NewZipf(random, 1.1, 1, 20_000)
		const denials = 30_000
		truth := map[string]int64{}
		for range denials {
			key := fmt.Sprint(zipf.Uint64())
			truth[key]++
			throttlertesting.Allow(t, th, key)
		}
		shown := map[string]bool{}
		all := recorder.TopDeniedInClear(1 << 20)
		if len(all) > watched+8 || len(all) < watched-8 {
			t.Errorf("%d watched, want %d", len(all), watched)
		}
		if !slices.IsSortedFunc(all, func(a, b insight.DeniedKey) int { return int(b.Denied - a.Denied) }) {
			t.Error("not in order")
		}
		for _, k := range all {
			shown[k.Key] = true
			if n := truth[k.Key]; k.Denied < n || k.Denied-k.Over > n {
				t.Errorf("%d watched: %s denied %d times, shown as %+v", watched, k.Key, n, k)
			}
		}
		for key, n := range truth {
			if n > 2*denials/int64(watched) && !shown[key] { // twice, for a shard may have more than its share
				t.Errorf("%d watched: %s denied %d times, and not shown", watched, key, n)
			}
		}
		if few := recorder.TopDenied(3); len(few) != 3 || few[0].Key != recorder.KeyHash(all[0].Key) || few[0].Denied != all[0].Denied {
			t.Errorf("%+v, want the first of %+v", few, all[:3])
		}
	}
}

func TestTopDeniedDecays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		th, recorder := denying(t, insight.Config{WatchedKeys: 10, HalfLife: time.Minute})
		for i, key := range strings.Fields("old seldom new") {
			for range []int{80, 2, 60}[i] {
				throttlertesting.Allow(t, th, key)
			}
			if key == "seldom" {
				time.Sleep(time.Minute)
			}
		}
		if got := fmt.Sprint(recorder.TopDeniedInClear(10)); got != "[{new 60 0} {old 40 0} {seldom 1 0}]" {
			t.Error(got)
		}
		time.Sleep(2 * time.Minute)
		if got := fmt.Sprint(recorder.TopDeniedInClear(10)); got != "[{new 15 0} {old 10 0}]" {
			t.Errorf("%s, want a quarter, and nothing of who has not been seen for long", got)
		}
		time.Sleep(time.Hour)
		if got := recorder.TopDeniedInClear(10); len(got) != 0 {
			t.Errorf("%v an hour later", got)
		}
		throttlertesting.Allow(t, th, "new")
		if got := fmt.Sprint(recorder.TopDeniedInClear(10)); got != "[{new 1 0}]" {
			t.Error(got)
		}
	})
}

// No key is shown that wasn't asked for in clear, none takes more memory than it may, and the secret makes the hash.
func TestTopDeniedHides(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("alice", 1000)
	keys := []string{"alice@example.com", long}
	var hashes []string
	for _, secret := range []string{"", "", "0123456789abcdef", "0123456789abcdef"} {
		th, recorder := denying(t, insight.Config{WatchedKeys: 10, HashKey: []byte(secret)})
		for _, key := range keys {
			throttlertesting.Allow(t, th, key)
		}
		for _, k := range recorder.TopDenied(10) {
			if strings.Contains(k.Key, "alice") || k.Key != recorder.KeyHash(keys[0]) && k.Key != recorder.KeyHash(long) {
				t.Errorf("%+v", k)
			}
		}
		for _, k := range recorder.TopDeniedInClear(10) {
			if k.Key != keys[0] && k.Key != recorder.KeyHash(long) {
				t.Errorf("in clear: %+v", k)
			}
		}
		hashes = append(hashes, recorder.KeyHash("alice"))
	}
	if hashes[0] == hashes[1] || hashes[1] == hashes[2] || hashes[2] != hashes[3] {
		t.Errorf("hashes %q: want the same for one secret only", hashes)
	}
	th, forger := denying(t, insight.Config{WatchedKeys: 10})
	forged := "\x00long key " + forger.KeyHash("alice@example.com")
	for _, key := range []string{"\x00long key alice@example.com", forged} {
		throttlertesting.Allow(t, th, key)
		if got := fmt.Sprint(forger.TopDenied(10), forger.TopDeniedInClear(10)); strings.Contains(got, "alice") ||
			strings.Contains(got, forger.KeyHash("alice@example.com")) || !strings.Contains(got, forger.KeyHash(key)) {
			t.Errorf("a key that looks like a hash: %s", got)
		}
	}
	th, off := denying(t, insight.Config{})
	throttlertesting.Allow(t, th, "k")
	_, on := denying(t, insight.Config{WatchedKeys: 1})
	if off.TopDenied(1) != nil || on.TopDenied(-1) != nil {
		t.Error("there are top denied keys where none are asked for")
	}
}

// Who makes room for another key is always one that was denied least, whatever has faded meanwhile. Keys are watched in several
// sets, each by itself: two of which one has made room for the other are of the same.
func TestTopDeniedForgetsTheLeast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const watched = 1000
		th, recorder := denying(t, insight.Config{WatchedKeys: watched, HalfLife: 8 * time.Minute})
		random := rand.New(rand.NewPCG(3, 4))
		parent := map[string]string{} // within the set
		set := func(key string) string {
			for parent[key] != "" {
				key = parent[key]
			}
			return key
		}
		replaced, compared := 0, 0
		for i := range 12_000 {
			if random.IntN(30) == 0 {
				time.Sleep(time.Duration(random.IntN(12)) * time.Second)
			}
			key := fmt.Sprint(random.IntN(100) * random.IntN(100)) // some of them often
			if i < 9000 {
				throttlertesting.Allow(t, th, key)
				continue
			}
			before := recorder.TopDeniedInClear(watched)
			throttlertesting.Allow(t, th, key)
			if slices.ContainsFunc(before, func(k insight.DeniedKey) bool { return k.Key == key }) {
				continue
			}
			after := map[string]bool{}
			for _, k := range recorder.TopDeniedInClear(watched) {
				after[k.Key] = true
			}
			gone := slices.DeleteFunc(slices.Clone(before), func(k insight.DeniedKey) bool { return after[k.Key] })
			if len(gone) == 0 { // there was room
				continue
			}
			replaced++
			if a, b := set(gone[0].Key), set(key); a != b {
				parent[a] = b
			}
			for _, k := range before {
				if !after[k.Key] || set(k.Key) != set(key) {
					continue
				}
				if compared++; k.Denied < gone[0].Denied {
					t.Fatalf("%+v made room for %s, and not %+v", gone, key, k)
				}
			}
		}
		if replaced < 500 || compared < 1000 {
			t.Errorf("only %d keys made room, %d times others could have", replaced, compared)
		}
	})
}

// An outage says nothing of the keys that are denied in it, and a deny list is known.
func TestTopDeniedIsOfLimits(t *testing.T) {
	t.Parallel()
	b := newSpy(t, nil)
	recorder := newRecorder(t, insight.Config{WatchedKeys: 1000})
	th := throttlertesting.New(t, throttler.Config{
		Backend: b, Policy: throttlertesting.One(limit.PerHour(1)), Deny: []string{"listed"}, Failure: throttler.FailClosed, Observer: recorder,
	})
	throttlertesting.Allow(t, th, "k")
	for range 3 {
		throttlertesting.Allow(t, th, "k")
	}
	share := recorder.Stats().Policies[0].DenialShare
	b.failWith(errDown)
	for range 50 {
		throttlertesting.Allow(t, th, "innocent")
	}
	if got := recorder.Stats().Policies[0]; got.DenialShare != share || share == 0 || got.Denied != 53 {
		t.Errorf("%+v after an outage, want a share of %v", got, share)
	}
	throttlertesting.Allow(t, th, "listed")
	if got := fmt.Sprint(recorder.TopDeniedInClear(10)); got != "[{k 3 0}]" {
		t.Errorf("denied most: %s", got)
	}
}
