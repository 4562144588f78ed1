package router

import (
	"bytes"
	"errors"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/backend"
)

// WatchFile puts the topology of a file in force now, and again whenever the file changes, until Close. It fails if the
// file can't be read or holds what [Router.Update] refuses. Later such a file changes nothing, is reported as an event, once
// for each thing wrong, and tried again. So is one that goes back to an older epoch: a change is taken back by another, with a
// larger one. A file of the same epoch with other addresses is put in force.
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
	if err := r.updateFromFile(last); err != nil && !errors.Is(err, ErrTopologyOld) { // others may be ahead of this file
		return err
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	if r.closed.Load() {
		return backend.ErrClosed
	}
	r.running.Go(func() {
		reported := "" // what was wrong when it was last looked at
		for sleep(r.life, fileEvery, nil) {
			data, err := readTopology(path)
			if err == nil && !bytes.Equal(data, last) {
				err = r.updateFromFile(data)
			}
			switch {
			case err == nil:
				last, reported = data, ""
			case err.Error() != reported: // and what was refused is tried again: Config.Node may succeed later
				reported = err.Error()
				r.events.emit(Event{Kind: TopologyRejected, Err: err})
			}
		}
	})
	return nil
}

const fileEvery = time.Second // is how often a topology file is looked at

// follow puts a file's topology in force.
func (r *Router) updateFromFile(data []byte) error {
	topology, err := ParseTopology(data)
	if err != nil {
		return err
	}
	return r.Update(topology)
}
