// Package schemas has the JSON Schemas (draft 2020-12) of the files that people write: policies, as registry.Open reads them,
// and the topology, as router.LoadTopology does. An editor that knows the schema completes and checks these files; both may
// name it in a member $schema, and may be YAML.
//
//	# yaml-language-server: $schema=policies.schema.json
//
// A schema doesn't find every mistake: that a policy which is named exists, for example, or that a member is given twice. The
// readers do. "throttlectl schema" prints the schemas.
package schemas

import _ "embed" // the schemas

//go:embed policies.schema.json
var policies string

//go:embed topology.schema.json
var topology string

// Policies returns the schema of a file of policies.
func Policies() string { return policies }

// Topology returns the schema of a topology.
func Topology() string { return topology }
