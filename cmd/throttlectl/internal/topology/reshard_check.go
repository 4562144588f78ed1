package topology

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/finding"
	"github.com/sluice-go/sluice/router"
)

// checkChange finds what running processes would refuse, or take in another way than intended.
func checkChange(before, after router.Topology) (f finding.List) {
	same := before.Digest() == after.Digest()
	switch {
	case after.Epoch == before.Epoch && same && sameAddresses(before, after):
		f.Add(finding.Info, "epoch", "both are the same topology", "")
		return f
	case after.Epoch == before.Epoch && same:
		f.Add(finding.Info, "epoch", "no key changes its owner, so the epoch may stay: addresses are taken over from the file", "")
		return append(f, checkGroups(before, after)...)
	case after.Epoch == before.Epoch:
		f.Add(finding.Critical, "epoch", fmt.Sprintf("refused: both have epoch %d, and keys change their owner (%s): processes that meet stop deciding",
			after.Epoch, router.Changes(before, after)), fmt.Sprintf("Give the new one epoch %d, with the old one as \"previous\".", before.Epoch+1))
	case after.Epoch < before.Epoch:
		f.Add(finding.Critical, "epoch", fmt.Sprintf("refused: epoch %d is below %d, which is in force", after.Epoch, before.Epoch),
			fmt.Sprintf("To take a change back, publish it with an epoch above %d.", before.Epoch))
	}
	if before.Epoch == 0 {
		f.Add(finding.Warning, "epoch", "the old topology has epoch 0: processes that use it never learn of a newer one",
			"Restart them all with the new one at once, or first with the old one under epoch 1.")
	}
	f = append(f, checkPrevious(before, after)...)
	if before.Seed != after.Seed {
		f.Add(finding.Warning, "seed", fmt.Sprintf("the seed changes from %d to %d, which moves nearly every key", before.Seed, after.Seed),
			"Keep the seed, unless that is what you want.")
	}
	return append(f, checkGroups(before, after)...)
}

func checkPrevious(before, after router.Topology) (f finding.List) {
	switch p := after.Previous; {
	case after.Epoch <= before.Epoch, before.Epoch == 0 && after.CheckHistory() == nil:
	case p == nil:
		f.Add(finding.Critical, "previous", "refused: the new topology doesn't name the old one as \"previous\", so that "+
			"a process that starts doesn't know where keys have their counts; throttlectl topology push refuses it, too",
			`Put the old topology into it as "previous". Once the handover is over, "baseline": true takes its place.`)
	case !slices.ContainsFunc(cluster.TopologyHistory(p), func(t router.Topology) bool { return t.Epoch == before.Epoch && t.Digest() == before.Digest() }):
		f.Add(finding.Critical, "previous", fmt.Sprintf("refused: the new topology doesn't name the old one among those before it, but epoch %d; "+
			"throttlectl topology push refuses it, too", p.Epoch),
			`Put the old topology into it as "previous", unchanged.`)
	case before.Previous != nil && p.Previous == nil:
		f.Add(finding.Info, "previous", "the old topology names a previous one, which the new one no longer does",
			"Keep it there if the handover from it isn't over yet.")
	}
	if err := after.CheckHistory(); err != nil && after.Previous != nil {
		f.Add(finding.Critical, "previous", "refused: "+err.Error(), "")
	}
	return f
}

// checkGroups checks groups that keep their name.
func checkGroups(before, after router.Topology) (f finding.List) {
	then := make(map[string]router.Group)
	for _, g := range before.Groups {
		then[g.Name] = g
	}
	for _, g := range after.Groups {
		old, ok := then[g.Name]
		if !ok {
			continue
		}
		if !g.Continues(old) {
			f = append(f, finding.Finding{Severity: finding.Warning, Check: "address", Group: g.Name,
				What: fmt.Sprintf("changes from %s to %s, and its keys don't change their owner: no counts are carried over", old, g),
				Do: "If that is another server, attach it as a replica and promote it first, or give the group a new name: " +
					"then its keys are handed over."})
		}
	}
	return f
}

func (o *planOptions) checkTimes(p *reshardPlan) (f finding.List) {
	if p.Moved == 0 {
		return nil
	}
	if p.Window == 0 {
		f.Add(finding.Info, "window", "the longest window of a policy isn't known: "+
			"the handover lasts that much longer than --settle", "Give every --limit.")
		return f
	}
	if time.Duration(p.Handover) > o.drain {
		f.Add(finding.Critical, "drain", fmt.Sprintf("the handover takes %v, but processes keep old groups for only %v", p.Handover, o.drain),
			fmt.Sprintf("Set router.Config.Drain to at least %v in all applications, and restart them, before the change.", p.Handover))
	}
	return f
}
