package redisopts_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/redisopts"
)

// unused names the options of a node that a hardened client of a cluster has no use for.
var unused = map[string]string{
	"MinRetryBackoff": "never retries", "MaxRetryBackoff": "never retries",
	"DialerRetryTimeout": "never dials again", "DialerRetryBackoff": "never dials again",
	"PipelineReadBufferSize": "pipelines have no pool", "PipelineWriteBufferSize": "pipelines have no pool",
	"AutoPipelineOptions": "pipelines are ours",
	"DisableIndentity":    "DisableIdentity is set", "IdentitySuffix": "DisableIdentity is set",
	"UnstableResp3": "no command needs it", "PushNotificationProcessor": "nothing is pushed",
}

// TestClusterHasOptionsOfNodes: no option of a node gets lost on the way to a cluster's client, whatever go-redis adds.
func TestClusterHasOptionsOfNodes(t *testing.T) {
	var node redis.Options
	fields := reflect.ValueOf(&node).Elem()
	for i := range fields.NumField() {
		switch f := fields.Field(i); {
		case !f.CanSet():
		case f.CanInt():
			f.SetInt(int64(i + 1))
		case f.Kind() == reflect.Bool:
			f.SetBool(true)
		case f.Kind() == reflect.String:
			f.SetString("set")
		case f.Kind() == reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
		case f.Kind() == reflect.Func:
			f.Set(reflect.MakeFunc(f.Type(), nil))
		}
	}
	redisopts.Harden(&node, time.Second)
	cluster := reflect.ValueOf(redisopts.Cluster([]string{"a:1"}, &node)).Elem()
	for i := range fields.NumField() {
		field := fields.Type().Field(i)
		got := cluster.FieldByName(field.Name)
		if !got.IsValid() || !field.IsExported() || unused[field.Name] != "" {
			continue
		}
		same := got.IsZero() == fields.Field(i).IsZero()
		if got.Comparable() {
			same = got.Equal(fields.Field(i))
		}
		if !same {
			t.Errorf("%s of a cluster is %v, and %v of its nodes", field.Name, got, fields.Field(i))
		}
	}
}

// TestHardenedPool: PoolSize bounds the connections, also those of pipelines.
func TestHardenedPool(t *testing.T) {
	var node redis.Options
	redisopts.Harden(&node, time.Second)
	cluster := redisopts.Cluster(nil, &node)
	for of, got := range map[string]int{
		"a node": node.PipelinePoolSize, "a cluster": cluster.PipelinePoolSize,
		"a node that takes over a slot": redisopts.Node("a:1", cluster).PipelinePoolSize,
	} {
		if got != -1 {
			t.Errorf("pipelines of %s have %d connections of their own", of, got)
		}
	}
}
