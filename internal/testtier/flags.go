package testtier

import "flag"

// SetFlags gives flags of the test binary other defaults, such as rapid's, as pairs of a name and a value. What the
// command line says wins. A TestMain calls it before m.Run.
func SetFlags(pairs ...string) error {
	flag.Parse()
	for i := 0; i < len(pairs); i += 2 {
		if f := flag.Lookup(pairs[i]); f.Value.String() == f.DefValue {
			if err := flag.Set(pairs[i], pairs[i+1]); err != nil {
				return err
			}
		}
	}
	return nil
}
