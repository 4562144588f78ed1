package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// defaultMost is the largest output where the client names none.
const defaultMost = 1024

// proxy stands in front of a model, and keeps each tenant to its budget.
type proxy struct {
	budget    *budget
	estimator estimator
	model     string // a URL
	client    *http.Client
}

// ServeHTTP reserves by estimate, forwards the stream as it comes, and settles by usage. A real proxy authenticates first, and
// takes the tenant from that.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var ask prompt
	tenant := r.Header.Get("X-Tenant")
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&ask); err != nil || tenant == "" || ask.Most < 0 {
		http.Error(w, "want a header X-Tenant, and a prompt as JSON", http.StatusBadRequest)
		return
	}
	if ask.Most == 0 {
		ask.Most = defaultMost
	}
	input := tokensOf(ask.Prompt)
	c, decision, err := p.budget.reserve(r.Context(), tenant, p.estimator.estimate(input, ask.Most))
	switch {
	case err != nil:
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	case c == nil:
		deny(w, decision)
		return
	}
	response, err := p.ask(r.Context(), ask)
	if err != nil && r.Context().Err() != nil { // the client has left: the model may have read the prompt
		settled(c.settle(r.Context(), input))
		return
	}
	if err != nil || response.StatusCode != http.StatusOK {
		settled(c.cancel(r.Context()))
		http.Error(w, "the model has failed, and nothing is charged", http.StatusBadGateway)
		if err == nil {
			_ = response.Body.Close()
		}
		return
	}
	defer response.Body.Close()
	used := usage{Prompt: input}
	// A client that leaves, and a model that breaks off, cost what was streamed by then.
	defer func() {
		p.estimator.learn(used.Output)
		settled(c.settle(r.Context(), used.Prompt+used.Output))
	}()
	w.Header().Set("Content-Type", response.Header.Get("Content-Type"))
	w.Header().Set("X-Tokens-Left", strconv.FormatInt(decision.Remaining, 10))
	stream, lines := http.NewResponseController(w), bufio.NewScanner(response.Body)
	for lines.Scan() {
		line := lines.Text()
		if text, last := strings.CutPrefix(line, usagePrefix); last {
			var final usage
			if json.Unmarshal([]byte(strings.TrimSuffix(text, "}")), &final) == nil {
				// The model's own count. A prompt can make it repeat such a line, which lowers nothing.
				used = usage{max(used.Prompt, final.Prompt), max(used.Output, final.Output)}
			}
		} else if line != "" {
			used.Output++
		}
		if _, err := w.Write(append(lines.Bytes(), '\n')); err != nil || stream.Flush() != nil {
			return
		}
	}
	if lines.Err() != nil {
		panic(http.ErrAbortHandler) // half an answer must not look like a whole one
	}
}

// ask sends a prompt to the model; the body of the response is its stream.
func (p *proxy) ask(ctx context.Context, ask prompt) (*http.Response, error) {
	body, err := json.Marshal(ask)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.model, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return p.client.Do(req)
}

func deny(w http.ResponseWriter, d throttler.Decision) {
	if d.RetryAfter != limit.Never {
		seconds := max(1, (d.RetryAfter+time.Second-1)/time.Second)
		w.Header().Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
	}
	http.Error(w, "over the budget of "+d.Limit.String(), http.StatusTooManyRequests)
}

// settled logs a charge that could not be corrected: it counts as reserved until the minute ends.
func settled(err error) {
	if err != nil {
		slog.Warn("tokens: a charge is not settled", "error", err)
	}
}
