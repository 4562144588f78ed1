package featureflag_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-go/sluice/featureflag"
)

func Example() {
	flag, err := featureflag.New(featureflag.Config{
		Name:   "use-redis",
		Source: featureflag.Static(50),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer flag.Close()
	for _, key := range []string{"user:1", "user:2", "user:3", "user:4"} {
		fmt.Println(key, flag.Enabled(key))
	}
	// Output:
	// user:1 false
	// user:2 true
	// user:3 true
	// user:4 false
}

func ExampleNew_errors() {
	_, err := featureflag.New(featureflag.Config{
		Name:    "use redis",
		Source:  featureflag.Static(101),
		Refresh: -time.Second,
	})
	fmt.Println(err)
	// Output:
	// featureflag: Name = "use redis": must be 1 to 128 of A-Z a-z 0-9 _ - . : /
	// featureflag: Source: percent = 101: must be 0 to 100
	// featureflag: Refresh = -1s: must be at least 1ms, or 0 for 10s
}

// A roll-out by file: an operator raises the percentage, and running processes follow.
func ExampleFile() {
	dir, err := os.MkdirTemp("", "flags")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	source := featureflag.File(filepath.Join(dir, "flags.json"))
	ctx := context.Background()
	if _, err := featureflag.Set(ctx, source, "use-redis", 12.5); err != nil {
		fmt.Println(err)
		return
	}

	changes := make(chan featureflag.State, 8)
	flag, err := featureflag.New(featureflag.Config{
		Name:     "use-redis",
		Source:   source,
		Refresh:  10 * time.Millisecond,
		OnChange: func(s featureflag.State) { changes <- s },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer flag.Close()
	fmt.Println((<-changes).Percent)

	if _, err := featureflag.Set(ctx, source, "use-redis", 25); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println((<-changes).Percent)

	if _, err := featureflag.Kill(ctx, source, "use-redis"); err != nil {
		fmt.Println(err)
		return
	}
	s := <-changes
	fmt.Println(s.Percent, s.Reason)
	// Output:
	// 12.5
	// 25
	// 0 disabled
}

// Whoever moves data along with a flag needs an answer and the version that it belongs to.
func ExampleFlag_Decide() {
	flag, err := featureflag.New(featureflag.Config{
		Name: "use-redis",
		Source: featureflag.Func(func(context.Context) (featureflag.Value, error) {
			return featureflag.Value{Percent: 0, Version: 1}, nil
		}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer flag.Close()
	if err := flag.Ready(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	on, at := flag.Decide("user:42")
	fmt.Println(on, at, "generation", flag.State().Generation)
	flag.Override(featureflag.On)
	on, at = flag.Decide("user:42")
	fmt.Println(on, at, flag.State().Reason)
	// Output:
	// false 16384 generation 1
	// true 16385 static
}

// Until the first load, Default applies. Who can't do with that waits.
func ExampleFlag_Ready() {
	flag, err := featureflag.New(featureflag.Config{
		Name:    "use-redis",
		Source:  featureflag.File("/no/such/file.json"),
		Default: 100,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer flag.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	err = flag.Ready(ctx)
	fmt.Println(errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrNotExist))
	fmt.Println(flag.Enabled("user:42"), flag.State().Reason)
	// Output:
	// true true
	// true default
}

// Kill makes a flag 0 % at once and keeps its percentage, for Revive. Each change raises the version.
func ExampleKill() {
	dir, err := os.MkdirTemp("", "flags")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	source := featureflag.File(filepath.Join(dir, "flags.json"))
	ctx := context.Background()
	set, err := featureflag.Set(ctx, source, "use-redis", 50)
	if err != nil {
		fmt.Println(err)
		return
	}
	killed, err := featureflag.Kill(ctx, source, "use-redis")
	if err != nil {
		fmt.Println(err)
		return
	}
	revived, err := featureflag.Revive(ctx, source, "use-redis")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(killed.Killed, killed.Percent, killed.Version > set.Version)
	fmt.Println(revived.Killed, revived.Percent, revived.Version > killed.Version)
	// Output:
	// true 50 true
	// false 50 true
}

// Raising the percentage only adds keys: who has the feature keeps it.
func ExampleStatic() {
	on := func(percent float64) (keys []string) {
		flag, err := featureflag.New(featureflag.Config{Name: "use-redis", Source: featureflag.Static(percent)})
		if err != nil {
			fmt.Println(err)
			return nil
		}
		defer flag.Close()
		for _, key := range []string{"user:1", "user:2", "user:3", "user:4"} {
			if flag.Enabled(key) {
				keys = append(keys, key)
			}
		}
		return keys
	}
	fmt.Println(on(25), on(50), on(100))
	// Output: [user:3] [user:2 user:3] [user:1 user:2 user:3 user:4]
}
