//! What goes into an order's workflow and what comes out.

use std::time::Duration;

use continuum_worker::prelude::*;

use crate::Faults;

/// An order, as the shop hands it in. In JSON: `{"id": "A-1", "customer": "Ada", "cents": 1999}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// The shop's number.
    pub id: String,
    /// Who ordered, and gets the parcel.
    pub customer: String,
    /// The price, in cents.
    pub cents: u64,
    /// How long the fraud review may take, in seconds. Default: a day.
    #[serde(default = "one_day")]
    pub review_seconds: u64,
    /// What goes wrong with this order. Default: nothing.
    #[serde(default, skip_serializing_if = "Faults::is_none")]
    pub faults: Faults,
}

/// What the fraud department says of an order: the signal `fraud_review`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Review {
    /// Whether the order may be shipped.
    pub approved: bool,
    /// Who says so.
    pub reviewer: String,
}

/// How an order ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The parcel is on its way.
    Shipped {
        /// The parcel's number.
        tracking: String,
    },
    /// The customer has the money back.
    Rejected {
        /// Why.
        reason: String,
    },
}

/// What the customer is owed: the input of `refund`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refund {
    /// Which order.
    pub order: Order,
    /// The receipt of the charge.
    pub receipt: String,
}

impl Order {
    /// An order without faults whose review may take a day.
    #[must_use]
    pub fn new(id: impl Into<String>, customer: impl Into<String>, cents: u64) -> Self {
        Self {
            id: id.into(),
            customer: customer.into(),
            cents,
            review_seconds: one_day(),
            faults: Faults::default(),
        }
    }

    /// How long the fraud review may take.
    #[must_use]
    pub fn review_limit(&self) -> Duration {
        Duration::from_secs(self.review_seconds)
    }

    /// Refuses an order that makes no sense.
    ///
    /// # Errors
    /// `InvalidOrder`, which no further attempt can mend.
    pub fn validate(&self) -> Result<(), ActivityError> {
        let invalid = |why| Err(ActivityError::permanent("InvalidOrder", why));
        match self {
            Self { id, .. } if id.trim().is_empty() => invalid("the order has no number"),
            Self { customer, .. } if customer.trim().is_empty() => invalid("nobody ordered this"),
            Self { cents: 0, .. } => invalid("there is nothing to pay"),
            _ => Ok(()),
        }
    }
}

fn one_day() -> u64 {
    24 * 60 * 60
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_form_of_an_order_is_complete() {
        let order: Order =
            serde_json::from_str(r#"{"id": "A-1", "customer": "Ada", "cents": 1999}"#).unwrap();
        assert_eq!(order, Order::new("A-1", "Ada", 1999));
        assert_eq!(order.review_limit(), Duration::from_secs(86_400));
    }

    #[test]
    fn an_order_that_makes_no_sense_is_refused_for_good() {
        for order in [
            Order::new(" ", "Ada", 1999),
            Order::new("A-1", "", 1999),
            Order::new("A-1", "Ada", 0),
        ] {
            let error = order.validate().unwrap_err();
            assert_eq!(error.kind(), "InvalidOrder");
            assert!(!error.is_retryable());
        }
        Order::new("A-1", "Ada", 1).validate().unwrap();
    }
}
