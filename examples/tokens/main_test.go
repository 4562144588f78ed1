package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/memory"
)

// tour is a proxy before a model, for real: two servers, and clients.
type tour struct {
	*budget
	url string
	t   *testing.T
}

func newTour(t *testing.T, model http.Handler, tokens, requests int64) *tour {
	t.Helper()
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC) // one minute, however slow the machine
	counts, err := memory.New(memory.Config{Now: func() time.Time { return noon }})
	if err != nil {
		t.Fatal(err)
	}
	b, err := newBudget(counts, tokens, requests)
	if err != nil {
		t.Fatal(err)
	}
	back := httptest.NewServer(model)
	front := httptest.NewServer(&proxy{budget: b, model: back.URL, client: back.Client()})
	t.Cleanup(func() {
		front.Close() // which waits for requests, and their charges
		back.Close()
		b.close()
		_ = counts.Close()
	})
	return &tour{b, front.URL, t}
}

func (o *tour) send(ctx context.Context, prompt string, most int) *http.Response {
	o.t.Helper()
	body := fmt.Sprintf(`{"prompt": %q, "max_tokens": %d}`, prompt, most)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.url, strings.NewReader(body))
	if err != nil {
		o.t.Fatal(err)
	}
	req.Header.Set("X-Tenant", "acme")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		o.t.Fatal(err)
	}
	return res
}

func (o *tour) post(prompt string, most int) (status int, body string, header http.Header) {
	o.t.Helper()
	res := o.send(o.t.Context(), prompt, most)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		o.t.Fatal(err)
	}
	return res.StatusCode, string(text), res.Header
}

// left waits until so many tokens and requests are left: a charge is settled after the client has its answer.
func (o *tour) left(tokens, requests int64) {
	o.t.Helper()
	var got [2]int64
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		a, err := o.tokens.Peek(o.t.Context(), "acme")
		if err != nil {
			o.t.Fatal(err)
		}
		b, err := o.requests.Peek(o.t.Context(), "acme")
		if err != nil {
			o.t.Fatal(err)
		}
		if got = [2]int64{a.Remaining, b.Remaining}; got == [2]int64{tokens, requests} {
			return
		}
	}
	o.t.Errorf("%d tokens and %d requests are left, want %d and %d", got[0], got[1], tokens, requests)
}

func TestSettlesByUsage(t *testing.T) {
	t.Parallel()
	o := newTour(t, model(0), 1000, 10)
	status, body, header := o.post("of rivers and sluices", 1000)
	if status != http.StatusOK || strings.Count(body, "data: ") != 13 || !strings.Contains(body, `{"usage":{"prompt_tokens":4,"output_tokens":12}}`) {
		t.Errorf("%d: %s", status, body)
	}
	if got, want := header.Get("X-Tokens-Left"), fmt.Sprint(1000-4-3*firstOutput/2); got != want {
		t.Errorf("%s tokens left while it ran, want %s: the estimate is reserved", got, want)
	}
	o.left(1000-16, 9)
}

// An answer that is longer than was reserved counts in full: also above the budget, and then the next request is denied.
func TestChargesAnOverrun(t *testing.T) {
	t.Parallel()
	o := newTour(t, model(0), 500, 10)
	if status, _, _ := o.post(strings.Repeat("word ", 200), 1000); status != http.StatusOK { // 800 tokens in all
		t.Fatal(status)
	}
	o.left(0, 9)
	status, body, header := o.post("more", 10)
	if status != http.StatusTooManyRequests || header.Get("Retry-After") != "60" || !strings.Contains(body, "500/1m") {
		t.Errorf("%d, Retry-After %s: %s", status, header.Get("Retry-After"), body)
	}
	o.left(0, 9) // what is denied costs no request either
}

func TestFailuresCostNothing(t *testing.T) {
	t.Parallel()
	o := newTour(t, model(0), 500, 2)
	for range 5 {
		if status, _, _ := o.post("fail", 10); status != http.StatusBadGateway {
			t.Errorf("status %d", status)
		}
		o.left(500, 2)
	}
	for _, want := range []int{200, 200, 429} { // the budget of requests
		if status, _, _ := o.post("hello", 10); status != want {
			t.Errorf("status %d, want %d", status, want)
		}
	}
	o.left(500-2*4, 0)
}

// The stream reaches the client as it comes, and a client that leaves pays for what was streamed.
func TestStreams(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	o := newTour(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for range 3 {
			fmt.Fprint(w, "data: word\n\n")
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done() // the model hangs
		close(gone)
	}), 1000, 10)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	res := o.send(ctx, "of rivers", 1000)
	defer res.Body.Close()
	words := 0
	for lines := bufio.NewScanner(res.Body); words < 3 && lines.Scan(); {
		if lines.Text() != "" {
			words++
		}
	}
	o.left(1000-2-3*firstOutput/2, 9) // while it runs, the estimate is held
	leave()
	<-gone
	o.left(1000-2-3, 9)
}

// An answer that breaks off costs what was streamed, whatever it says of its usage, and reaches the client as broken.
func TestBreaksOff(t *testing.T) {
	t.Parallel()
	o := newTour(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, word := range []string{"one", "two", `{"usage":{"prompt_tokens":0,"output_tokens":0}}`, "three"} { // as the prompt made it say
			fmt.Fprintf(w, "data: %s\n\n", word)
			_ = http.NewResponseController(w).Flush()
		}
		panic(http.ErrAbortHandler)
	}), 1000, 10)
	res := o.send(t.Context(), "of rivers", 1000)
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("half an answer looks whole: %s", text)
	}
	o.left(1000-2-3, 9)
}

// A client that leaves before the first word pays for its prompt, and for a request.
func TestLeavesEarly(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	o := newTour(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(asked)
		<-r.Context().Done()
	}), 1000, 10)
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.url, strings.NewReader(`{"prompt": "of rivers and sluices", "max_tokens": 100}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Tenant", "acme")
	go func() { <-asked; leave() }()
	if res, err := http.DefaultClient.Do(req); err == nil {
		res.Body.Close()
		t.Error("an answer")
	}
	o.left(1000-4, 9)
}

// However many come at once, no more is reserved than the budget has.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	const callers, each = 40, 32 // a prompt of 8, and its echo thrice
	o := newTour(t, model(0), 5*(8+24), 1000)
	var mu sync.Mutex
	served := int64(0)
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			status, _, _ := o.post("a b c d e f g h", 24) // an output that the estimate can't exceed
			mu.Lock()
			defer mu.Unlock()
			if status == http.StatusOK {
				served++
			} else if status != http.StatusTooManyRequests {
				t.Errorf("status %d", status)
			}
		})
	}
	all.Wait()
	if served != 5 {
		t.Errorf("%d were served, want 5", served)
	}
	o.left(0, 1000-served)
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	o := newTour(t, model(0), 500, 2)
	res, err := http.Post(o.url, "", strings.NewReader(`{"prompt": "x"}`)) // without a tenant
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusBadRequest {
		t.Errorf("status %d without a tenant", res.StatusCode)
	}
	if status, _, _ := o.post("x", -1); status != http.StatusBadRequest {
		t.Errorf("status %d of -1 tokens", status)
	}
	o.left(500, 2)
}

// TestComparison holds the README's figures and picture to the code: a trace is the same each time.
func TestComparison(t *testing.T) {
	t.Parallel()
	const tokens = 30_000
	results, err := playAll(newTrace(), tokens, 120)
	if err != nil {
		t.Fatal(err)
	}
	report, most, estimate := results[0], results[1], results[2]
	if report.over < 5*estimate.over || report.wrongly != 0 {
		t.Errorf("to report goes %d over the budget, to estimate %d", report.over, estimate.over)
	}
	if most.over != 0 || most.wrongly < 10*estimate.wrongly {
		t.Errorf("to reserve the most denies %d wrongly and goes %d over, to estimate %d", most.wrongly, most.over, estimate.wrongly)
	}
	for _, r := range results {
		for i := range r.used {
			if r.name == "reserve the most" && r.used[i]+r.held[i] > tokens {
				t.Errorf("%d tokens are used and %d reserved after %d s", r.used[i], r.held[i], i)
			}
		}
	}
	for file, want := range map[string]string{"tokens.svg": string(draw(results, tokens)), "README.md": table(results)} {
		got, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(got, []byte(want)) {
			t.Errorf("%s doesn't have what is played, %v:\n%s", file, err, want)
		}
	}
}
