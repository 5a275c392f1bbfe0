//! The workflow. It reads like an ordinary function; the engine makes it survive the death of its worker at any line.

use continuum_worker::prelude::*;

use crate::{Order, Outcome, Refund, Review, charge_card, refund, ship};

/// Takes the money, waits for the fraud department's word, and then ships the order or gives the money back.
#[workflow(version = 1, signals(fraud_review: Review))]
pub async fn order_flow(ctx: &WorkflowContext, order: Order) -> Result<Outcome, WorkflowError> {
    let checked = order.clone();
    ctx.step("validate", move || async move { checked.validate() })
        .await?;

    let receipt = ctx.activity(charge_card, order.clone()).await?;

    // The run costs nothing while it waits, be it for a day.
    let review = ctx
        .signal(order_flow::fraud_review)
        .timeout(order.review_limit())
        .await;

    let reason = match review {
        Ok(Some(review)) if review.approved => {
            let tracking = ctx.activity(ship, order).await?;
            return Ok(Outcome::Shipped { tracking });
        }
        Ok(Some(review)) => format!("{} refused it", review.reviewer),
        Ok(None) => "nobody reviewed it in time".to_owned(),
        Err(stopped) => {
            // The order was called off. What is shielded runs nevertheless.
            ctx.shield(ctx.activity(refund, Refund { order, receipt }))
                .await?;
            return Err(stopped.into());
        }
    };
    ctx.activity(refund, Refund { order, receipt }).await?;
    Ok(Outcome::Rejected { reason })
}

#[cfg(test)]
mod tests;
