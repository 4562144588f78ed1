// Package endpoint fetches what an application serves of itself over HTTP.
package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Get fetches a document of most bytes at most. Errors name the URL as shown.
func Get(ctx context.Context, address, shown string, timeout time.Duration, most int) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if failed, ok := errors.AsType[*url.Error](err); ok {
		failed.URL = shown
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", shown, resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, int64(most)+1))
	if err == nil && len(body) > most {
		err = fmt.Errorf("more than %d bytes", most)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", shown, err)
	}
	return body, nil
}

// Redacted is a URL without possible secrets: the password, a user name without one, and the query.
func Redacted(u *url.URL) string {
	its := *u
	if _, has := u.User.Password(); u.User != nil && !has {
		its.User = url.User("xxxxx")
	}
	if u.RawQuery != "" {
		its.RawQuery = "xxxxx"
	}
	return its.Redacted()
}

// Parse parses the value of --url, which must look like the example. Errors leave the value out: it may hold a password.
func Parse(text, example string) (*url.URL, error) {
	if text == "" {
		return nil, errors.New("--url is needed: " + example)
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("--url: want " + example)
	}
	return u, nil
}
