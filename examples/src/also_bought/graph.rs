//! The graph: customers and items, with a weight on each edge.

use std::collections::{BTreeMap, BTreeSet};

use continuum_worker::prelude::*;

/// How much of an item a customer bought in all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Edge {
    /// Who bought.
    pub customer: String,
    /// What.
    pub item: String,
    /// How much.
    pub weight: u64,
}

/// Who bought what, in memory.
#[derive(Debug, Default)]
pub struct Graph {
    /// By customer, then by item.
    weights: BTreeMap<String, BTreeMap<String, u64>>,
    /// Who bought an item.
    customers: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    /// The graph of these edges.
    pub fn of(edges: impl IntoIterator<Item = Edge>) -> Self {
        let mut graph = Self::default();
        for edge in edges {
            graph.add(&edge);
        }
        graph
    }

    /// Adds to the weight of an edge, and gives the sum.
    pub fn add(&mut self, edge: &Edge) -> u64 {
        let buyers = self.customers.entry(edge.item.clone()).or_default();
        buyers.insert(edge.customer.clone());
        let items = self.weights.entry(edge.customer.clone()).or_default();
        let weight = items.entry(edge.item.clone()).or_default();
        *weight += edge.weight;
        *weight
    }

    /// The weight between a customer and an item.
    #[must_use]
    pub fn weight(&self, customer: &str, item: &str) -> u64 {
        let items = self.weights.get(customer);
        items.and_then(|items| items.get(item)).map_or(0, |w| *w)
    }

    /// What those who bought `item` also bought, most first: how much of it, all of them together.
    #[must_use]
    pub fn also_bought(&self, item: &str) -> Vec<(String, u64)> {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        let buyers = self.customers.get(item).into_iter().flatten();
        for (other, weight) in buyers.filter_map(|buyer| self.weights.get(buyer)).flatten() {
            if other != item {
                *sums.entry(other).or_default() += weight;
            }
        }
        let mut sums: Vec<_> = sums.into_iter().map(|(i, w)| (i.to_owned(), w)).collect();
        sums.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        sums
    }

    /// All edges, by customer and item.
    #[must_use]
    pub fn edges(&self) -> Vec<Edge> {
        let edges = self.weights.iter().flat_map(|(customer, items)| {
            items.iter().map(|(item, weight)| Edge {
                customer: customer.clone(),
                item: item.clone(),
                weight: *weight,
            })
        });
        edges.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(customer: &str, item: &str, weight: u64) -> Edge {
        Edge {
            customer: customer.into(),
            item: item.into(),
            weight,
        }
    }

    #[test]
    fn what_the_buyers_of_an_item_also_bought_is_summed_over_them() {
        let graph = Graph::of([
            edge("ada", "bread", 1),
            edge("ada", "butter", 2),
            edge("bob", "bread", 3),
            edge("bob", "butter", 1),
            edge("bob", "jam", 3),
            edge("cleo", "jam", 9),
        ]);
        let found = [("butter".to_owned(), 3), ("jam".to_owned(), 3)];
        assert_eq!(graph.also_bought("bread"), found);
        assert_eq!(graph.also_bought("caviar"), []);
    }

    #[test]
    fn weights_add_up_and_come_out_as_they_went_in() {
        let mut graph = Graph::of([edge("ada", "bread", 1)]);
        assert_eq!(graph.add(&edge("ada", "bread", 2)), 3);
        assert_eq!(graph.weight("ada", "bread"), 3);
        assert_eq!(graph.weight("ada", "jam"), 0);
        assert_eq!(graph.edges(), [edge("ada", "bread", 3)]);
    }
}
