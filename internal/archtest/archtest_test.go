// Package archtest holds the project's arrows: which package may import which. It reads the sources, so it needs no
// network and no build. A package that the table doesn't name fails too: a new one is entered with what it may import.
package archtest

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	module     = "github.com/sluice-go/sluice"
	internal   = module + "/internal/"
	goRedis    = "github.com/redis/go-redis/v9/..."
	gomemcache = "github.com/bradfitz/gomemcache/memcache"
)

// A rule is what the files of a package may import besides the standard library. "x/..." means x and all below.
type rule struct {
	imports []string
	noStd   []string // forbidden parts of the standard library
	public  bool     // any exported package of this module, and any other module
}

// pure code has no I/O.
var pure = []string{"log/...", "net/...", "os/...", "syscall/..."}

// rules are by package, by package and all below ("x/..."), or by file, for what only that file may import in addition.
var rules = map[string]rule{
	"limit":                     {imports: own("internal/durationtext"), noStd: pure},
	"limit/state":               {imports: own("limit", "internal/durationtext", "internal/keyhash"), noStd: pure},
	"scripts":                   {imports: own("limit", "limit/state")},
	"ring":                      {imports: own("internal/keyhash")},
	"featureflag":               {imports: own("internal/keyhash", "internal/smallfile", "internal/strictjson", "internal/typednil")},
	"featureflag/redis.go":      {imports: []string{goRedis}},
	"backend":                   {imports: own("limit", "limit/state", "internal/fielderrors")},
	"backend/dual":              {imports: own("backend", "limit", "limit/state", "internal/handover", "internal/typednil", "internal/workqueue", "internal/tracing", "internal/fielderrors")},
	"backend/lease":             {imports: own("backend", "limit", "limit/state", "internal/fielderrors", "internal/hashtable", "internal/keyhash", "internal/outcome", "internal/typednil")},
	"backend/memcached":         {imports: append(own("backend", "backend/control", "ring", "limit", "limit/state", "internal/callguard", "internal/deadline", "internal/fielderrors", "internal/outcome", "internal/storedname", "internal/tracing"), gomemcache)},
	"backend/memory":            {imports: own("backend", "backend/control", "limit", "limit/state", "internal/hashtable", "internal/keyhash", "internal/fielderrors")},
	"backend/redisbackend":      {imports: append(own("backend", "backend/control", "scripts", "limit", "limit/state", "internal/callguard", "internal/fielderrors", "internal/outcome", "internal/redisopts", "internal/redispipe", "internal/storedname", "internal/tracing"), goRedis)},
	"backend/backendtest":       {imports: append(own("backend", "backend/control", "limit", "limit/state"), "pgregory.net/rapid")},
	"router":                    {imports: append(own("ring", "internal/fielderrors", "internal/tracing", "backend/control", "backend", "backend/redisbackend", "limit", "limit/state", "internal/handover", "internal/redisopts", "internal/smallfile", "internal/strictjson", "internal/typednil", "internal/yamljson"), "github.com/sony/gobreaker/v2", goRedis)},
	"throttler":                 {imports: own("backend", "backend/memory", "limit", "limit/state", "internal/deadline", "internal/fielderrors", "internal/outcome", "internal/prefixtable", "internal/typednil")},
	"throttler/httplimit":       {imports: own("throttler", "limit", "internal/fielderrors", "internal/limitview")},
	"throttler/otelthrottle":    {imports: append(own("throttler", "backend", "backend/dual", "backend/lease", "internal/nametable", "internal/typednil"), otelAPI...)},
	"backend/control":           {imports: own("backend", "limit")},
	"examples/...":              {public: true, imports: own("internal/picture")},
	"examples/choosing":         {public: true, imports: own("internal/picture", "internal/redisserver")}, // it measures
	"internal/archtest":         {},
	"schemas":                   {},
	"internal/backendtesting":   {imports: append(own("backend", "backend/control", "backend/dual", "backend/lease", "backend/memcached", "backend/memory", "backend/redisbackend", "limit", "limit/state", "internal/testserver", "internal/testtier"), goRedis, "go.uber.org/goleak", "pgregory.net/rapid")},
	"internal/hashtable":        {},
	"internal/testclock":        {},
	"internal/callguard":        {imports: own("internal/deadline")},
	"internal/deadline":         {},
	"internal/durationtext":     {},
	"internal/explorer":         {imports: append(own("backend", "backend/dual", "backend/lease", "backend/memory", "limit", "limit/state"), "github.com/cespare/xxhash/v2")},
	"internal/keyhash":          {imports: []string{"github.com/cespare/xxhash/v2"}},
	"internal/simulation":       {imports: own("backend", "backend/control", "backend/dual", "backend/lease", "backend/memory", "limit", "limit/state", "router", "throttler")},
	"internal/smallfile":        {},
	"internal/strictjson":       {},
	"internal/yamljson":         {imports: []string{"go.yaml.in/yaml/v4"}},
	"internal/storedname":       {imports: own("limit")},
	"internal/redisserver":      {imports: []string{goRedis}},
	"internal/testserver":       {imports: append(own("internal/redisopts"), goRedis)},
	"internal/testtier":         {},
	"internal/typednil":         {},
	"internal/redisopts":        {imports: append(own("internal/callguard"), goRedis)},
	"internal/redispipe":        {imports: append(own("limit/state", "scripts", "internal/callguard", "internal/deadline", "internal/redisopts"), goRedis)},
	"internal/outcome":          {imports: own("backend", "limit", "limit/state", "internal/deadline")},
	"internal/tracing":          {imports: own("backend", "limit/state")},
	"internal/picture":          {},
	"throttler/insight":         {imports: own("throttler", "throttler/registry", "backend", "backend/dual", "backend/lease", "limit", "limit/state", "internal/nametable", "internal/typednil", "internal/workqueue")},
	"throttler/registry":        {imports: own("throttler", "limit", "internal/fielderrors", "internal/prefixtable", "internal/smallfile", "internal/strictjson", "internal/yamljson")},
	"throttler/throttlertest":   {imports: own("throttler", "backend", "backend/memory", "limit", "limit/state")},
	"internal/fielderrors":      {imports: own("limit")},
	"internal/limitview":        {imports: own("limit")},
	"internal/nametable":        {},
	"internal/workqueue":        {imports: own("internal/keyhash")},
	"internal/prefixtable":      {},
	"internal/handover":         {imports: own("backend", "limit", "limit/state")},
	"internal/throttlertesting": {imports: own("backend", "backend/memory", "limit", "throttler")},
}

// otelAPI are the packages of the OpenTelemetry API; everything else of it belongs to the application.
var otelAPI = []string{
	"go.opentelemetry.io/otel", // the global providers
	"go.opentelemetry.io/otel/attribute",
	"go.opentelemetry.io/otel/codes",
	"go.opentelemetry.io/otel/log/...",
	"go.opentelemetry.io/otel/metric/...",
	"go.opentelemetry.io/otel/trace/...",
}

// foreign are modules that only nested modules may require: whoever imports the SDK doesn't get them.
var foreign = []string{
	"connectrpc.com/...",
	"github.com/gin-gonic/...",
	"github.com/go-chi/...",
	"github.com/go-redis/redis_rate/...",
	"github.com/gofiber/...",
	"github.com/labstack/...",
	"github.com/open-feature/...",
	"github.com/prometheus/...",
	"github.com/sethvargo/go-limiter/...",
	"github.com/spf13/cobra/...",
	"github.com/testcontainers/...",
	"github.com/throttled/...",
	"github.com/ulule/...",
	"go.opentelemetry.io/otel/exporters/...",
	"go.opentelemetry.io/otel/sdk/...",
	"google.golang.org/grpc/...",
}

func own(packages ...string) []string {
	for i, p := range packages {
		packages[i] = module + "/" + p
	}
	return packages
}

// A source is one Go file that isn't a test.
type source struct {
	file    string // relative to the repository, with slashes
	nested  bool   // in a module of its own
	imports []string
}

// check returns what the source does wrong.
func check(s source) []string {
	var wrong []string
	if s.nested {
		return nil // it may import what Go allows, of internal too: a copy is worse
	}
	pkg := path.Dir(s.file)
	r, ok := find(pkg)
	if !ok {
		return []string{fmt.Sprintf("%s: package %s is not in the table of internal/archtest: enter what it may import", s.file, pkg)}
	}
	for _, p := range s.imports {
		if !r.allows(p) && !matchAny(rules[s.file].imports, p) {
			wrong = append(wrong, fmt.Sprintf("%s imports %s: not allowed by the table of internal/archtest", s.file, p))
		}
	}
	return wrong
}

func find(pkg string) (rule, bool) {
	if r, ok := rules[pkg]; ok {
		return r, true
	}
	for dir := pkg; dir != "."; dir = path.Dir(dir) {
		if r, ok := rules[dir+"/..."]; ok {
			return r, true
		}
	}
	return rule{}, false
}

func (r rule) allows(p string) bool {
	first, _, _ := strings.Cut(p, "/")
	switch {
	case !strings.Contains(first, "."):
		return !matchAny(r.noStd, p)
	case r.public:
		return !strings.HasPrefix(p, internal) || matchAny(r.imports, p)
	}
	return matchAny(r.imports, p)
}

func matchAny(patterns []string, p string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		root, below := strings.CutSuffix(pattern, "/...")
		return p == root || below && strings.HasPrefix(p, root+"/")
	})
}

// parse reads the imports of one file; src is as for parser.ParseFile.
func parse(file, name string, src any, nested bool) (source, error) {
	f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly)
	if err != nil {
		return source{}, err
	}
	s := source{file: file, nested: nested}
	for _, spec := range f.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return source{}, err
		}
		s.imports = append(s.imports, p)
	}
	return s, nil
}

// requirements returns the modules that a go.mod requires, directly or not.
func requirements(mod string) []string {
	var modules []string
	block := false
	for line := range strings.Lines(mod) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
		case fields[0] == ")":
			block = false
		case fields[0] == "require" && len(fields) > 1 && fields[1] == "(":
			block = true
		case fields[0] == "require" && len(fields) > 1:
			modules = append(modules, fields[1])
		case block && !strings.HasPrefix(fields[0], "//"):
			modules = append(modules, fields[0])
		}
	}
	return modules
}

func TestImports(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	nested := make(map[string]bool) // by directory
	files := 0
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if entry.IsDir() {
			base := entry.Name()
			if rel != "." && (strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata") {
				return filepath.SkipDir
			}
			_, err := os.Stat(filepath.Join(name, "go.mod"))
			nested[rel] = rel != "." && (err == nil || nested[path.Dir(rel)])
			return nil
		}
		if !strings.HasSuffix(rel, ".go") || strings.HasSuffix(rel, "_test.go") {
			return nil
		}
		s, err := parse(rel, name, nil, nested[path.Dir(rel)])
		if err != nil {
			return err
		}
		files++
		for _, wrong := range check(s) {
			t.Error(wrong)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 5 {
		t.Errorf("found only %d files: is this the repository?", files)
	}
}

func TestRootModuleIsLight(t *testing.T) {
	t.Parallel()
	mod, err := os.ReadFile(filepath.Join("..", "..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	modules := requirements(string(mod))
	if !slices.Contains(modules, "github.com/redis/go-redis/v9") {
		t.Errorf("requirements of go.mod: %q, want go-redis among them", modules)
	}
	for _, m := range modules {
		if matchAny(foreign, m) {
			t.Errorf("go.mod requires %s: it belongs to a nested module", m)
		}
	}
}

// TestCheckCatches plants violations and their harmless neighbours.
func TestCheckCatches(t *testing.T) {
	t.Parallel()
	const (
		redis  = "github.com/redis/go-redis/v9"
		sdk    = "go.opentelemetry.io/otel/sdk/metric"
		hidden = module + "/internal/keyhash"
	)
	for _, test := range []struct {
		file, imports string
		nested        bool
		wrong         bool
	}{
		{file: "limit/limit.go", imports: "time"},
		{file: "limit/limit.go", imports: "net/netip", wrong: true},
		{file: "limit/limit.go", imports: "os", wrong: true},
		{file: "limit/limit.go", imports: "log/slog", wrong: true},
		{file: "limit/limit.go", imports: redis, wrong: true},
		{file: "limit/limit.go", imports: module + "/ring", wrong: true},
		{file: "ring/ring.go", imports: hidden},
		{file: "ring/ring.go", imports: "github.com/cespare/xxhash/v2", wrong: true},
		{file: "featureflag/redis.go", imports: redis},
		{file: "featureflag/redis.go", imports: hidden},
		{file: "featureflag/redis.go", imports: module + "/limit", wrong: true},
		{file: "featureflag/flag.go", imports: redis, wrong: true},
		{file: "internal/redisopts/redisopts.go", imports: redis + "/maintnotifications"},
		{file: "backend/redisbackend/redis.go", imports: "github.com/redis/go-redis/v9x", wrong: true},
		{file: "backend/errors.go", imports: redis, wrong: true},
		{file: "backend/dual.go", imports: module + "/featureflag", wrong: true},
		{file: "backend/memory.go", imports: module + "/internal/testserver", wrong: true},
		{file: "backend/backendtest/suite.go", imports: "pgregory.net/rapid"},
		{file: "backend/deeper/x.go", imports: "fmt", wrong: true},
		{file: "router/router.go", imports: module + "/throttler", wrong: true},
		{file: "throttler/throttler.go", imports: redis, wrong: true},
		{file: "throttler/httplimit/middleware.go", imports: "net/http"},
		{file: "throttler/otelthrottle/observer.go", imports: "go.opentelemetry.io/otel/metric/noop"},
		{file: "throttler/otelthrottle/observer.go", imports: sdk, wrong: true},
		{file: "examples/quickstart/main.go", imports: module + "/throttler"},
		{file: "examples/quickstart/main.go", imports: hidden, wrong: true},
		{file: "surprise/x.go", imports: "fmt", wrong: true},
		{file: "doc.go", imports: "fmt", wrong: true},
		{file: "contrib/grpclimit/x.go", imports: "google.golang.org/grpc", nested: true},
		{file: "contrib/grpclimit/x.go", imports: module + "/throttler", nested: true},
		{file: "contrib/grpclimit/x.go", imports: hidden, nested: true},
		{file: "examples/migration/svg.go", imports: module + "/internal/picture"},
	} {
		src := fmt.Sprintf("package x\n\nimport (\n\t\"strings\"\n\tnamed %q\n)\n", test.imports)
		s, err := parse(test.file, test.file, src, test.nested)
		if err != nil {
			t.Fatal(err)
		}
		if got := check(s); len(got) > 0 != test.wrong {
			t.Errorf("%s imports %s: wrong = %q, want %v", test.file, test.imports, got, test.wrong)
		}
	}
}

func TestRequirements(t *testing.T) {
	t.Parallel()
	const mod = `module example.com/m // require no/such v1

go 1.26

require example.com/one v1.0.0

require (
	example.com/two v1.0.0
	// example.com/comment v1.0.0
	github.com/spf13/cobra v1.9.0 // indirect
)

replace example.com/one => ../one
`
	got := requirements(mod)
	if want := []string{"example.com/one", "example.com/two", "github.com/spf13/cobra"}; !slices.Equal(got, want) {
		t.Errorf("requirements = %q, want %q", got, want)
	}
	for m, want := range map[string]bool{
		"github.com/spf13/cobra": true, "go.opentelemetry.io/otel/sdk/metric": true, "google.golang.org/grpc": true,
		"github.com/go-redis/redis_rate/v10": true, "github.com/throttled/throttled/v2": true,
		"go.opentelemetry.io/otel/metric": false, "google.golang.org/protobuf": false, "github.com/redis/go-redis/v9": false,
	} {
		if matchAny(foreign, m) != want {
			t.Errorf("foreign %s = %v, want %v", m, !want, want)
		}
	}
}
