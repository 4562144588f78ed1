package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// prompt is the body of a request, to the proxy and to the model.
type prompt struct {
	Prompt string `json:"prompt"`
	Most   int64  `json:"max_tokens"` // of the output
}

// usage is what a model says of a finished answer.
type usage struct {
	Prompt int64 `json:"prompt_tokens"`
	Output int64 `json:"output_tokens"`
}

const usagePrefix = `data: {"usage":`

// model pretends to be a language model: it echoes the words of the prompt, over and over, one token a line of a stream of
// server-sent events. At the end it says how many tokens that was. A prompt that begins with "fail" fails.
func model(pace time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var p prompt
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&p); err != nil {
			http.Error(w, "bad request", http.StatusBadRequest)
			return
		}
		words := strings.Fields(p.Prompt)
		if len(words) == 0 || words[0] == "fail" {
			http.Error(w, "the model is overloaded", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		stream := http.NewResponseController(w)
		output := min(3*int64(len(words)), p.Most)
		for i := range output {
			if _, err := fmt.Fprintf(w, "data: %s\n\n", words[i%int64(len(words))]); err != nil || stream.Flush() != nil {
				return
			}
			select {
			case <-time.After(pace):
			case <-r.Context().Done():
				return
			}
		}
		text, _ := json.Marshal(usage{tokensOf(p.Prompt), output})
		fmt.Fprintf(w, "%s%s}\n\n", usagePrefix, text)
	})
}

// tokensOf counts the tokens of a prompt. Real tokenizers differ; the model's own count decides in the end.
func tokensOf(text string) int64 { return int64(len(strings.Fields(text))) }
