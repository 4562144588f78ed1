package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s#]*)(?:#([^)\s]*))?\)`)
	codeRef = regexp.MustCompile("((?:`[A-Za-z.]+`, )*`[A-Za-z.]+`) in \\[[^]]+\\]\\(([^)#]+\\.go)\\)")
	quoted  = regexp.MustCompile("`([^`]+)`")
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
)

// TestDocsLead: links in README and docs lead to files and headings that are there, and "`f` in [file.go](...)" to a file that
// declares f.
func TestDocsLead(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) < 5 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	refs := 0
	for _, page := range append(pages, "../../README.md") {
		text := read(t, page)
		for _, l := range link.FindAllStringSubmatch(text, -1) {
			to, anchor := filepath.Join(filepath.Dir(page), l[1]), l[2]
			if strings.Contains(l[1], "://") {
				continue
			}
			if l[1] == "" {
				to = page
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: %v", page, err)
			} else if anchor != "" && !anchors(read(t, to))[anchor] {
				t.Errorf("%s: %s has no heading #%s", page, l[1], anchor)
			}
		}
		for _, ref := range codeRef.FindAllStringSubmatch(text, -1) {
			declared := declarations(t, filepath.Join(filepath.Dir(page), ref[2]))
			for _, name := range quoted.FindAllStringSubmatch(ref[1], -1) {
				if refs++; !declared[name[1]] {
					t.Errorf("%s: `%s` is not declared in %s", page, name[1], ref[2])
				}
			}
		}
	}
	if refs < 20 {
		t.Errorf("%d names of code found: the pattern misses them", refs)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// anchors are the headings of a page as GitHub names them in links.
func anchors(text string) map[string]bool {
	all := make(map[string]bool)
	for _, h := range heading.FindAllStringSubmatch(text, -1) {
		all[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(h[1]))] = true
	}
	return all
}

// declarations are the functions, methods, types, constants and variables of a file: "f" and "package.f", "m" and "T.m", "T".
func declarations(t *testing.T, path string) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]bool)
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			all[d.Name.Name], all[file.Name.Name+"."+d.Name.Name] = true, true
			if d.Recv != nil {
				of := d.Recv.List[0].Type
				if star, ok := of.(*ast.StarExpr); ok {
					of = star.X
				}
				if generic, ok := of.(*ast.IndexExpr); ok {
					of = generic.X
				}
				all[of.(*ast.Ident).Name+"."+d.Name.Name] = true
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					all[spec.Name.Name] = true
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						all[name.Name] = true
					}
				}
			}
		}
	}
	return all
}
