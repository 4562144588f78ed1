package main

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-go/sluice/featureflag"
)

const (
	clients = 16
	users   = 40
	tenants = 4
)

// play has clients ask, the operator move keys, and accidents happen, until ctx ends.
func play(ctx context.Context, app *application, own *servers, url string, o *options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}, Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	for range clients {
		all.Go(func() { ask(ctx, client, url, clients*time.Second/time.Duration(o.rate)) })
	}
	failed := make(chan error, 2)
	all.Go(func() { failed <- operate(ctx, app.flags, o.step) })
	if own != nil {
		all.Go(func() { failed <- drill(ctx, own.primaries[0], o) })
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed: // nil only at the end
		return err
	}
}

// ask is one client.
func ask(ctx context.Context, client *http.Client, url string, every time.Duration) {
	for pause(ctx, every) == nil {
		path, header, who := "/api", "X-Tenant", rand.IntN(tenants)
		if rand.IntN(3) > 0 {
			path, header, who = "/search", "X-User", int(rand.ExpFloat64()*users/4)%users // some ask far more than others
			switch rand.IntN(20) {
			case 0:
				path = "/report"
			case 1:
				path = "/export"
			case 2:
				path = "/usage"
			case 3:
				path = "/download"
			}
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+path, nil)
		if err != nil {
			continue
		}
		req.Header.Set(header, strconv.Itoa(who))
		res, err := client.Do(req)
		if err != nil {
			continue // the service is about to end
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
}

// operate moves keys to Redis and back.
func operate(ctx context.Context, flags featureflag.Source, step time.Duration) error {
	for {
		for _, percent := range []float64{50, 100, 50, 10} {
			if pause(ctx, step) != nil {
				return nil
			}
			if _, err := featureflag.Set(ctx, flags, flagName, percent); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// drill lets a primary die now and then, and come back with nothing.
func drill(ctx context.Context, primary *child, o *options) error {
	for pause(ctx, o.drill) == nil {
		primary.stop()
		if pause(ctx, o.down) != nil {
			return nil
		}
		if err := primary.start(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
