package router

import (
	"errors"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/smallfile"
)

// WatchFile puts the topology of a file in force now, and whenever the file changes, until Close. It fails if the file can't be
// read or has a topology that [Router.Update] refuses. Later such a file changes nothing, is reported as an event, once for
// each problem, and is tried again. That includes a file with an older epoch: to take a change back, publish a larger epoch. A
// file of the same epoch with other addresses is put in force.
func (r *Router) WatchFile(path string) error {
	r.changing.Lock()
	closed := r.closed.Load()
	r.changing.Unlock()
	switch {
	case closed:
		return backend.ErrClosed
	case r.opener == nil:
		return &ConfigError{Field: "file", Value: strconv.Quote(path), Bound: "must be for a router made by Open", Err: ErrNotSupported}
	}
	last, err := readTopology(path)
	if err != nil {
		return err
	}
	if err := r.updateFromFile(path, last); err != nil && !errors.Is(err, ErrTopologyOld) { // the servers may have a newer one
		return err
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	if r.closed.Load() {
		return backend.ErrClosed
	}
	r.running.Go(func() {
		read := func() ([]byte, error) { return readTopology(path) }
		use := func(data []byte) error { return r.updateFromFile(path, data) }
		smallfile.Poll(r.life, fileEvery, last, read, use, func(err error) {
			if err != nil {
				r.events.emit(Event{Kind: TopologyRejected, Err: err})
			}
		})
	})
	return nil
}

const fileEvery = time.Second // between two reads of a topology file

// updateFromFile puts a file's topology in force.
func (r *Router) updateFromFile(path string, data []byte) error {
	topology, err := parseTopologyFile(path, data)
	if err != nil {
		return err
	}
	return r.Update(topology)
}
