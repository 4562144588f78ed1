package openfeature_test

import (
	"context"
	"fmt"

	sdk "github.com/open-feature/go-sdk/openfeature"
	"github.com/open-feature/go-sdk/openfeature/memprovider"

	"github.com/sluice-go/sluice/contrib/openfeature"
	"github.com/sluice-go/sluice/featureflag"
)

// percentages is what a feature management system would hold: a flag of type float, here without a version.
func percentages(percent float64) map[string]memprovider.InMemoryFlag {
	return map[string]memprovider.InMemoryFlag{
		"use-redis": {
			State:          memprovider.Enabled,
			DefaultVariant: "percent",
			Variants:       map[string]any{"percent": percent},
		},
	}
}

func Example() {
	provider := memprovider.NewInMemoryProvider(percentages(25))
	if err := sdk.SetNamedProviderAndWait("my-app", provider); err != nil {
		fmt.Println(err)
		return
	}
	defer sdk.Shutdown()

	source, err := openfeature.Source(sdk.NewClient("my-app"), openfeature.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	changes := make(chan featureflag.State, 8)
	flag, err := featureflag.New(featureflag.Config{
		Name:     "use-redis",
		Source:   source,
		OnChange: func(s featureflag.State) { changes <- s },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer flag.Close()
	if err := flag.Ready(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println((<-changes).Percent, flag.Enabled("user:1"), flag.Enabled("user:2"))

	provider.UpdateFlags(percentages(50)) // seen at once
	fmt.Println((<-changes).Percent, flag.Enabled("user:1"), flag.Enabled("user:2"))
	// Output:
	// 25 false false
	// 50 false true
}
