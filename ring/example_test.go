package ring_test

import (
	"fmt"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-go/sluice/ring"
)

func Example() {
	r, err := ring.New([]ring.Member{
		{Name: "eu-1"},
		{Name: "eu-2"},
		{Name: "eu-3", Weight: 2},
	}, ring.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, key := range []string{"user:41", "user:42", "user:43", "user:44"} {
		fmt.Println(key, "belongs to", r.Owner(key))
	}
	// Output:
	// user:41 belongs to eu-3
	// user:42 belongs to eu-2
	// user:43 belongs to eu-3
	// user:44 belongs to eu-3
}

func ExampleNew_errors() {
	_, err := ring.New([]ring.Member{
		{Name: "eu-1", Weight: -1},
		{Name: "eu-1"},
	}, ring.Config{Points: 100_000})
	fmt.Println(err)
	// Output:
	// ring: Points is 100000: want 1 to 65536, or 0 for 8192
	// ring: members[0].Weight is -1: want 1 to 1024, or 0 for 1
	// ring: members[1].Name is "eu-1": members[0] has it already
}

// How many keys would an added member move, and from where?
func ExampleRing_OwnerHash() {
	members := []ring.Member{{Name: "eu-1"}, {Name: "eu-2"}, {Name: "eu-3"}}
	before, err := ring.New(members, ring.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	after, err := ring.New(append(members, ring.Member{Name: "eu-4"}), ring.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	moved := make(map[string]int)
	for user := range 100_000 {
		h := xxhash.Sum64String(fmt.Sprintf("user:%d", user)) // once, for two rings
		if from, to := before.OwnerHash(h), after.OwnerHash(h); from != to {
			moved[from+" to "+to]++
		}
	}
	for move, keys := range moved {
		fmt.Printf("%s: %d of 100000 keys\n", move, keys)
	}
	// Unordered output:
	// eu-1 to eu-4: 8255 of 100000 keys
	// eu-2 to eu-4: 8201 of 100000 keys
	// eu-3 to eu-4: 8108 of 100000 keys
}

func ExampleRing_Shares() {
	r, err := ring.New([]ring.Member{{Name: "eu-1"}, {Name: "eu-2"}, {Name: "eu-3", Weight: 2}}, ring.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for m, share := range r.Shares() {
		fmt.Printf("%s %-20s %4.1f%%\n", m.Name, strings.Repeat("#", int(40*share+0.5)), 100*share)
	}
	// Output:
	// eu-1 ##########           25.1%
	// eu-2 ##########           25.1%
	// eu-3 #################### 49.8%
}
